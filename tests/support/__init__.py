"""What tests share: harnesses, oracles, fakes and test machines, in one folder for each part of the product.

``programs`` holds what runs outside of the test's process: scripts, and modules that are sent into tasks and
are therefore imported by their bare names.
"""
