"""Speed: gander's engines beside their peers, and beside what they were."""
