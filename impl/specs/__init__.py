"""What is generated in specs/ and docs/: `make specs`."""
