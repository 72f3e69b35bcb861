-- The first stream behind a text. 1 the text, 2 a text behind the streams of the workflow
SELECT stream FROM timers WHERE stream > ?1 AND stream < ?2 ORDER BY stream LIMIT 1
