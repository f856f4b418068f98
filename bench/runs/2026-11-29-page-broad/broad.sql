-- Tables of many columns as people have them: telemetry, panels of answers, features, counters, measures of an account.
SELECT setseed(0.42);
CREATE FUNCTION make(name text, rows int, count int, type text, value text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE columns text; BEGIN
 SELECT string_agg(format('(%s)::%s AS c%s', replace(value, '@', c::text), type, c), ', ') INTO columns FROM generate_series(1, count) c;
 EXECUTE format('CREATE TABLE %I AS SELECT i AS id, timestamptz ''2026-01-01'' + i * interval ''10 seconds'' AS at, %s FROM generate_series(1, %s) i', name, columns, rows);
END $$;
-- 120 sensors of two decimals that drift
SELECT make('telemetry', 25000, 120, 'float8', 'round((50 + @ + 20 * sin(i / (300.0 + @ * 7)) + random())::numeric, 2)');
-- 200 of single precision, one decimal
SELECT make('machine', 20000, 200, 'real', 'round((100 + @ + 30 * sin(i / (500.0 + @ * 3)) + 2 * random())::numeric, 1)');
-- 300 features with all their digits
SELECT make('features', 8000, 300, 'float8', 'sqrt(-2 * ln(random() + 1e-12)) * cos(6.28318 * random())');
SELECT make('embedded', 12000, 400, 'real', 'sqrt(-2 * ln(random() + 1e-12)) * cos(6.28318 * random())');
-- answers of 1 to 5, 250 questions, one in nine not answered
SELECT make('answers', 40000, 250, 'smallint', 'CASE WHEN random() < 0.11 THEN NULL ELSE 1 + floor(5 * random() * random()) END');
-- one-hot columns
SELECT make('flags', 40000, 400, 'boolean', '(i * 31 + @ * 17 + floor(random() * 3)::int) % 29 = 0');
-- 150 counters that grow
SELECT make('counters', 20000, 150, 'bigint', '(i::bigint * (@ * 37 + 11)) + floor(random() * @ * 5)');
-- 90 amounts and 30 codes
SELECT make('amounts', 25000, 90, 'numeric(12,2)', 'CASE WHEN (i + @) % 4 = 0 THEN 0 ELSE random() * 100 * @ END');
SELECT make('codes', 40000, 60, 'text', '(ARRAY[''open'',''closed'',''in progress'',''n/a'','''',''DE'',''FR'',''premium''])[1 + (floor(random() * random() * 8)::int)]');
-- 600 integers of a panel
SELECT make('panel', 8000, 600, 'int', 'floor(1000 * random() * random() * (@ % 7)) * 10');
CREATE INDEX ON telemetry (at); 
CHECKPOINT;
SELECT relname, pg_size_pretty(pg_relation_size(oid)) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r';
