"""The parts of the Store contract, by subject. store/base.py joins them."""
