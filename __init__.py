"""gander: does an RWKV-7 engine compute the model it claims to?"""

__version__ = "0.1.0"
