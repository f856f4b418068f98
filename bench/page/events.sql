-- The database `events`: what devices report. Made up, the same from run to run: timestamps that jitter, readings with two
-- decimals, raw floating point samples, events with random keys and documents; then one row in fifty deleted, one updated.
SET synchronous_commit = off;
SELECT setseed(0.42);
CREATE TABLE devices (id int PRIMARY KEY, name text NOT NULL, address inet, place point, installed date, firmware varchar(20));
INSERT INTO devices
SELECT i, 'sensor-' || (i % 7) || '-' || lpad(i::text, 5, '0'), ('10.' || i % 4 || '.' || i / 250 || '.' || i % 250)::inet,
       point(round((random() * 360 - 180)::numeric, 5)::float8, round((random() * 180 - 90)::numeric, 5)::float8),
       date '2021-01-01' + (random() * 1500)::int, 'v' || (1 + random() * 3)::int || '.' || (random() * 9)::int || '.' || i % 5
FROM generate_series(1, 5000) AS i;
CREATE TABLE readings (device int NOT NULL, at timestamptz NOT NULL, temperature float8, humidity float4, battery smallint, ok boolean);
INSERT INTO readings
SELECT 1 + i % 1200, timestamptz '2025-03-01' + i / 1200 * interval '60 s' + random() * interval '900 ms',
       round((20 + 12 * sin(i / 86400.0) + (i % 1200) / 90.0 + random() * 0.8)::numeric, 2)::float8,
       round((45 + 20 * sin(i / 40000.0) + random() * 4)::numeric, 1)::float4, (100 - i / 20000 % 100)::smallint, random() > 0.004
FROM generate_series(0, 1499999) AS i;
CREATE TABLE samples (id bigserial PRIMARY KEY, device int NOT NULL, channel smallint, amplitude float8, phase float8);
INSERT INTO samples (device, channel, amplitude, phase)
SELECT (random() * 4999)::int + 1, i % 8, sin(i / 500.0) + (random() - 0.5) / 50, random() * 2 * pi() FROM generate_series(1, 500000) AS i;
CREATE TABLE events (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), device int NOT NULL REFERENCES devices, at timestamptz NOT NULL,
                     kind text NOT NULL, peer inet, cost numeric(12, 4), tags text[], detail jsonb NOT NULL);
INSERT INTO events (device, at, kind, peer, cost, tags, detail)
SELECT (random() * random() * 4999)::int + 1, timestamptz '2025-03-01' + i * interval '11.7 s' + random() * interval '5 s',
       (ARRAY['start', 'stop', 'alarm', 'login', 'update', 'heartbeat'])[1 + (random() * 5)::int],
       ('192.168.' || (random() * 40)::int || '.' || (random() * 254)::int)::inet, (random() * 900)::numeric(12, 4),
       ARRAY['zone-' || i % 37, (ARRAY['day', 'night'])[1 + i % 2]],
       jsonb_build_object('code', (random() * 600)::int, 'level', (ARRAY['info', 'warning', 'error'])[1 + (random() * random() * 2.99)::int],
           'ms', round((random() * 800)::numeric, 1), 'user', 'user' || (random() * random() * 20000)::int,
           'text', 'device ' || (i % 5000) || ' reported state ' || (random() * 12)::int, 'session', md5((i / 9)::text))
FROM generate_series(1, 350000) AS i;
CREATE INDEX ON readings (device, at);
CREATE INDEX ON readings USING brin (at);
CREATE INDEX ON samples USING hash (device);
CREATE INDEX ON events (device, at);
CREATE INDEX ON events (at);
CREATE INDEX ON events USING gin (detail jsonb_path_ops);
CREATE INDEX ON events USING gin (tags);
CREATE INDEX ON devices USING gist (place);
DELETE FROM readings WHERE random() < 0.02;
UPDATE readings SET ok = NOT ok, temperature = temperature + 0.25 WHERE random() < 0.02;
DELETE FROM events WHERE random() < 0.02;
UPDATE events SET kind = 'closed', detail = detail || '{"closed": true}' WHERE random() < 0.02;
UPDATE samples SET phase = phase / 2 WHERE random() < 0.02;
