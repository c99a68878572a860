"""How things are executed: rows in chunks, joined passes, recorded launches, precision, sums over ranks."""
