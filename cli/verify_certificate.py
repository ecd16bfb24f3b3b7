"""`gander verify-certificate`: does it say what its evidence says?"""

import click

from ._options import console


@click.command
@click.argument("file", type=click.Path())
@click.option("--badge", type=click.Path(), metavar="FILE", help="Write an SVG badge of the level, if it is sound.")
def command(file: str, badge: str | None) -> int:
    """Recompute levels, counts and hashes of a certificate from its evidence.

    Exit status: 0 if all follow from it, 1 if something does not, 2 if the file is no certificate.
    """
    from pathlib import Path

    from ..conformance.certificate import discrepancies, read_certificate
    from ..reports.certificate import print_certificate, write_badge

    certificate = read_certificate(Path(file))
    wrong = discrepancies(certificate)
    print_certificate(certificate, wrong, console())
    if badge and not wrong:
        write_badge(certificate, Path(badge))
    return 1 if wrong else 0
