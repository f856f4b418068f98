-- The data of the benches: typed tables with realistic redundancy, about 1.3 GB with their indexes at :scale = 1.
-- Run by `cargo xtask bench`; psql -v scale=1 -f bench/load.sql does the same by hand.
SET search_path = public;
SET synchronous_commit = off;
SET maintenance_work_mem = '512MB';
SELECT setseed(0.42);
CREATE TABLE orders AS
SELECT i AS id, (random() * 200000)::int AS customer, timestamptz '2022-01-01' + random() * interval '1000 days' AS placed_at,
       (random() * 100000)::numeric(12, 2) AS total, (ARRAY['open', 'paid', 'sent', 'closed', 'returned'])[1 + (random() * 4)::int] AS state,
       'Order ' || i || ' of ' || md5((i % 5000)::text) || ' for delivery to street ' || (random() * 400)::int AS note
FROM generate_series(1, 2500000 * :scale) AS i;
CREATE TABLE items AS
SELECT i / 4 AS order_id, (random() * 50000)::int AS product, (1 + random() * 20)::int AS quantity, (random() * 1000)::numeric(10, 2) AS price,
       random() AS weight, i % 7 = 0 AS gift
FROM generate_series(1, 6000000 * :scale) AS i;
CREATE TABLE events AS
SELECT i AS id, timestamptz '2025-01-01' + i * interval '370 milliseconds' AS at, gen_random_uuid() AS session,
       jsonb_build_object('page', '/shop/' || (i % 900), 'ms', (random() * 800)::int, 'agent', 'agent ' || i % 40, 'ok', random() > 0.03) AS detail
FROM generate_series(1, 1500000 * :scale) AS i;
CREATE TABLE documents AS
SELECT i AS id, string_agg(md5((i * 31 + word)::text) || ' ' || (ARRAY['backup', 'restore', 'verify', 'page', 'segment', 'stripe', 'frame'])[1 + (random() * 6)::int], ' ') AS body
FROM generate_series(1, 40000 * :scale) AS i, generate_series(1, 60) AS word GROUP BY i;
ALTER TABLE orders ADD PRIMARY KEY (id);
CREATE INDEX ON orders (customer, placed_at);
CREATE INDEX ON items (order_id);
CREATE INDEX ON items (product, price);
CREATE INDEX ON events USING btree (session);
CREATE INDEX ON events USING brin (at);
VACUUM (FREEZE, ANALYZE);
CHECKPOINT;
