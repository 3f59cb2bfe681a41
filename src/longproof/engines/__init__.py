"""Everything that touches a running server. `connect(url)` in `registry` finds out which dialect it speaks."""
