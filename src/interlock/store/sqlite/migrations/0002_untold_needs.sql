-- A need that ended with more runs waiting for it than one transaction should tell. They are told in the order of their
-- numbers, a page at a time; `after` is the last one that was told.
CREATE TABLE untold_needs (
  need  INTEGER NOT NULL PRIMARY KEY REFERENCES runs (number) ON DELETE CASCADE,
  after INTEGER NOT NULL
) STRICT;
