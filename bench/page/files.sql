-- The files of the current database as a list for `pagehaul-bench page-sample --list`: what lies in its directory, what its
-- pages hold, and the columns of their tuples. One file a line, separated by tabs:
--   path, kind, number of the first page within the fork, columns as TYPE_OID:ATTLEN:ALIGNMENT,... or -, relation
-- Read after a checkpoint. psql -XAtq -F TAB -f files.sql
SET search_path = pg_catalog;
SELECT '# pagehaul page files', 1, current_setting('block_size'), current_database();
WITH base_types AS (
    -- A domain over a domain is two steps; more are not looked for: a wrong type costs ratio only.
    SELECT t.oid, COALESCE(NULLIF(second.typbasetype, 0), NULLIF(t.typbasetype, 0), t.oid) AS base
    FROM pg_type AS t LEFT JOIN pg_type AS second ON second.oid = t.typbasetype
), columns AS (
    SELECT attrelid, string_agg(COALESCE(base, 0) || ':' || attlen || ':' || CASE attalign WHEN 'c' THEN 1 WHEN 's' THEN 2 WHEN 'i' THEN 4 ELSE 8 END,
                                ',' ORDER BY attnum) AS text
    FROM pg_attribute LEFT JOIN base_types ON base_types.oid = atttypid
    WHERE attnum > 0
    GROUP BY attrelid
), relations AS (
    SELECT pg_relation_filenode(c.oid) AS filenode, c.oid::regclass::text AS name,
           CASE relkind WHEN 'i' THEN amname WHEN 't' THEN 'toast' WHEN 'S' THEN 'sequence' ELSE 'heap' END AS kind,
           columns.text AS columns
    FROM pg_class AS c LEFT JOIN pg_am AS a ON a.oid = c.relam LEFT JOIN columns ON attrelid = c.oid
    WHERE relkind IN ('r', 'm', 't', 'i', 'S')
), directory AS (
    SELECT 'base/' || oid AS path FROM pg_database WHERE datname = current_database()
), files AS (
    SELECT path || '/' || file AS path, regexp_match(file, '^(\d+)(?:_(fsm|vm|init))?(?:\.(\d+))?$') AS parts
    FROM directory, pg_ls_dir(path) AS file
    -- As in a backup: no caches, no temporary relations.
    WHERE file <> 'pg_internal.init' AND file NOT LIKE 't%'
)
SELECT current_setting('data_directory') || '/' || path,
       CASE WHEN parts IS NULL THEN 'file' ELSE COALESCE(parts[2], kind, 'other') END,
       COALESCE(parts[3]::bigint, 0) * (SELECT setting::bigint FROM pg_settings WHERE name = 'segment_size'),
       CASE WHEN parts[2] IS NULL AND parts IS NOT NULL THEN COALESCE(columns, '-') ELSE '-' END,
       COALESCE(name, path)
FROM files LEFT JOIN relations ON filenode = parts[1]::oid
ORDER BY kind, name, length(path), path;
