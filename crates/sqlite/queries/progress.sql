-- The number of recorded checkpoints and attempts of an execution. 1 execution
SELECT (SELECT count(*) FROM checkpoints WHERE execution = ?1) + (SELECT count(*) FROM attempts WHERE execution = ?1)
