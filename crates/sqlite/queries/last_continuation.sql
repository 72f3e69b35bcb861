-- The path at which the last part of an execution begins. The paths of later parts begin with these bytes, and lie in the last
-- stripe. An abandoned continuation may follow the last one. 1 execution
SELECT path FROM checkpoints
WHERE stripe = 5 AND execution = ?1 AND path >= x'fa800000' AND path < x'fb' AND kind = 12
ORDER BY path DESC LIMIT 1
