-- Tables and indexes of every kind that the page codec tells apart, with what servers do to pages: updates, deletes, dropped and
-- added columns, TOAST, truncated ends. About 25 MB; the same rows every time.
SET client_min_messages = warning;
SELECT setseed(0.25) \g /dev/null
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN cents AS numeric(12, 2);
CREATE TABLE types AS
SELECT n AS id, (n % 7)::smallint AS small, n::bigint * 1000003 AS big, random() AS real8, (n / 100.0)::real AS real4,
       (n * 17 % 100000 / 100.0)::cents AS price, (random() * 1e12)::numeric AS noise, n % 3 = 0 AS flag,
       'word ' || n % 1000 AS words, repeat(md5(n::text), n % 5) AS hashes, n::text::char(12) AS padded, 'n'::"char" AS letter,
       md5(n::text)::uuid AS uid, timestamp '2026-01-01' + n * interval '13 s' AS at, timestamptz '2026-01-01 UTC' + n * interval '1 h' AS zoned,
       date '2020-01-01' + n % 3000 AS day, time '00:00' + n * interval '1 s' AS clock, n * interval '1 min' AS span,
       ARRAY[n, n + 1, n * 2] AS ints, ARRAY['a' || n, NULL, 'b'] AS texts, ARRAY[n / 3.0, 2.5]::float8[] AS doubles,
       jsonb_build_object('id', n, 'tags', ARRAY['x', 'y' || n % 10], 'deep', jsonb_build_object('v', n / 7.0)) AS doc,
       json_build_object('id', n)::json AS plain, ('mood' || n)::bytea AS bytes,
       (ARRAY['sad', 'ok', 'happy'])[1 + n % 3]::mood AS mood, inet '10.0.0.0' + n AS address, macaddr '08:00:2b:01:02:03' AS mac,
       point(n % 360, random()) AS place, box(point(n, n), point(n + 1, n + 2)) AS area, int4range(n, n + 10) AS range,
       to_tsvector('simple', 'word ' || n % 100 || ' more words ' || n) AS vector, B'1011'::bit(4) AS bits, ('name' || n)::name AS name,
       '0/1'::pg_lsn + n AS lsn, n::oid AS oid_, n::money AS cash
FROM generate_series(1, 6000) AS n;
ALTER TABLE types DROP COLUMN small, DROP COLUMN hashes;
ALTER TABLE types ADD COLUMN late int DEFAULT 7, ADD COLUMN later text;
CREATE INDEX types_id ON types (id);
CREATE INDEX types_many ON types (mood, day DESC, words);
CREATE INDEX types_words ON types (words) INCLUDE (id);
CREATE INDEX types_price ON types (price);
CREATE INDEX types_hash ON types USING hash (uid);
CREATE INDEX types_hash_words ON types USING hash (words);
CREATE INDEX types_place ON types USING gist (place);
CREATE INDEX types_area ON types USING gist (area);
CREATE INDEX types_range ON types USING gist (range);
CREATE INDEX types_spplace ON types USING spgist (place);
CREATE INDEX types_spwords ON types USING spgist (words);
CREATE INDEX types_doc ON types USING gin (doc);
CREATE INDEX types_vector ON types USING gin (vector);
CREATE INDEX types_ints ON types USING gin (ints);
CREATE INDEX types_brin ON types USING brin (at) WITH (pages_per_range = 2);
CREATE INDEX types_bloomish ON types USING brin (uid uuid_bloom_ops) WITH (pages_per_range = 2);
CREATE UNLOGGED TABLE unlogged AS SELECT id, words FROM types;
CREATE TABLE nulls (a int, b text, c float8, d numeric, e timestamptz, f int[]);
INSERT INTO nulls SELECT CASE WHEN n % 2 = 0 THEN n END, CASE WHEN n % 3 = 0 THEN 't' || n END, CASE WHEN n % 5 = 0 THEN n / 3.0 END,
       CASE WHEN n % 7 = 0 THEN n END, CASE WHEN n % 11 = 0 THEN now() END, CASE WHEN n % 13 = 0 THEN ARRAY[n] END FROM generate_series(1, 20000) AS n;
CREATE TABLE wide (id int, body text, packed text);
ALTER TABLE wide ALTER COLUMN packed SET STORAGE EXTERNAL;
INSERT INTO wide SELECT n, (SELECT string_agg(md5((n * i)::text), '') FROM generate_series(1, 400) AS i),
       (SELECT string_agg('row ' || i * n, ',') FROM generate_series(1, 800) AS i) FROM generate_series(1, 150) AS n;
CREATE TABLE columns_many ();
DO $$ BEGIN FOR n IN 1..300 LOOP EXECUTE format('ALTER TABLE columns_many ADD c%s %s', n, (ARRAY['int', 'text', 'smallint', 'bigint', 'bool', 'float8'])[1 + n % 6]); END LOOP; END $$;
INSERT INTO columns_many (c1, c6, c50, c77, c300) SELECT 'text ' || n, n, n % 2 + 1, n / 7.0, n FROM generate_series(1, 2000) AS n;
CREATE TABLE busy (id int PRIMARY KEY, value int, filler text) WITH (fillfactor = 70);
INSERT INTO busy SELECT n, 0, repeat('x', 40) FROM generate_series(1, 20000) AS n;
UPDATE busy SET value = value + 1 WHERE id % 3 = 0;
UPDATE busy SET value = value + 1, filler = 'y' WHERE id % 5 = 0;
DELETE FROM busy WHERE id % 7 = 0;
BEGIN; SELECT count(*) FROM (SELECT * FROM busy WHERE id < 500 FOR SHARE) AS locked \g /dev/null
UPDATE busy SET value = -1 WHERE id < 100; ROLLBACK;
CREATE TABLE cut AS SELECT n AS id, md5(n::text) AS text FROM generate_series(1, 60000) AS n;
CREATE INDEX cut_id ON cut (id);
DELETE FROM cut WHERE id > 20000;
VACUUM cut;
VACUUM (FREEZE) nulls;
UPDATE types SET price = price + 1, later = 'now' WHERE id % 4 = 0;
DELETE FROM types WHERE id % 9 = 0;
VACUUM ANALYZE;
UPDATE types SET late = 8 WHERE id % 10 = 0;
CREATE MATERIALIZED VIEW seen AS SELECT mood, count(*), sum(price), avg(real8) FROM types GROUP BY mood;
CREATE SEQUENCE numbers; SELECT nextval('numbers') FROM generate_series(1, 40) \g /dev/null
CHECKPOINT;
