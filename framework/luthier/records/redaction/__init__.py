"""What must not be recorded: passwords, keys and tokens."""

from luthier.records.redaction.secrets import find_secret, redact, require_none

__all__ = ["find_secret", "redact", "require_none"]
