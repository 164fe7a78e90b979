"""Both clients of the Python SDK, for the tests that ask for `of`."""

from python_sdk_clients import of  # noqa: F401
