"""Where tasks come from. Reads; decides nothing and keeps nothing."""
