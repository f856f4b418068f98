//! Aligned columns, and blocks of "name  value" lines.

/// How a column lines up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under a header line; columns are two blanks apart and lines have no blanks at their end.
pub(crate) fn table(header: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(column, (name, _))| rows.iter().map(|row| width(&row[column])).chain([width(name)]).max().unwrap_or(0))
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for ((cell, (_, align)), width_max) in cells.zip(header).zip(&widths) {
            let gap = " ".repeat(width_max - width(cell));
            match align {
                Align::Left => text.extend([cell, &gap, "  "]),
                Align::Right => text.extend([gap.as_str(), cell, "  "]),
            }
        }
        format!("{}\n", text.trim_end())
    };
    let mut text = line(&mut header.iter().map(|(name, _)| *name));
    text.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    text
}

/// Lines "  name   value" with the values below each other; a value of several lines stays in its column.
pub(crate) fn block(lines: &[(&str, String)]) -> String {
    let name_width = lines.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in lines {
        let mut name = *name;
        for part in value.lines() {
            text.push_str(format!("  {name:name_width$}  {part}").trim_end());
            text.push('\n');
            name = "";
        }
    }
    text
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["long".to_owned(), "1000".to_owned()]];
        let text = table(&[("name", Align::Left), ("size", Align::Right)], &rows);
        assert_eq!(text, "name  size\na        1\nlong  1000\n");
        assert_eq!(table(&[("x", Align::Left)], &[]), "x\n");
    }

    #[test]
    fn blocks_keep_long_values_in_their_column() {
        let text = block(&[("a", "1".to_owned()), ("name", "2\n3".to_owned()), ("none", String::new())]);
        assert_eq!(text, "  a     1\n  name  2\n        3\n");
    }
}
