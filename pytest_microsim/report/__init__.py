"""What the reader of a test run sees: terminal, JUnit properties, failure sections."""
