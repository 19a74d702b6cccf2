"""What every other room uses: errors, exit codes, words, strict configs, and what ships with the package."""
