"""Words. The test writes this file in Latin-1."""

GREETING = "Grüße"
