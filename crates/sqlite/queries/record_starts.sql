-- Records starts that count for a rate. 1 queue, 2 is_key, 3 queue_key, 4 at, 5 number of starts
INSERT INTO rates (queue, is_key, queue_key, at, starts) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO UPDATE SET starts = starts + excluded.starts
