"""What mechanisms share: recurrences in chunks, windows of rows, statistics, and what a call is made of."""
