"""Values and their names. Imports nothing of Interlock; everything else imports it."""
