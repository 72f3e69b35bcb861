-- The first route behind a text. 1 the text, 2 a text behind the routes of the workflow
SELECT route FROM ready WHERE route > ?1 AND route < ?2 ORDER BY route LIMIT 1
