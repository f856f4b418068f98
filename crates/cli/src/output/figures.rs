//! Bytes, rates and durations as people read them.

const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/// `1536` is "1.50 KiB": three digits that count.
pub(crate) fn bytes(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    // 999.5 would be shown as a four-digit number.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// "412 MiB/s".
pub(crate) fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", bytes(bytes_per_s.max(0.0) as u64))
}

/// The rate of `count` bytes in `seconds`; "-" if no time passed.
pub(crate) fn rate_of(count: u64, seconds: f64) -> String {
    if seconds > 0.0 { rate(count as f64 / seconds) } else { "-".to_owned() }
}

/// "0.42 s", "12.3 s", "3 min 05 s", "2 h 07 min".
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.2} s"),
        10..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// "1 file", "12 files", "1 234 567 files".
pub(crate) fn count(number: u64, noun: &str) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    format!("{grouped} {noun}{}", if number == 1 { "" } else { "s" })
}

/// "37 %".
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// "3.02", or "-" for nothing stored.
pub(crate) fn ratio(ratio: f64) -> String {
    if ratio.is_finite() && ratio > 0.0 { format!("{ratio:.2}") } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_that_count() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (1024 * 1000, "0.98 MiB"),
            (10 << 20, "10.0 MiB"),
            (150 << 20, "150 MiB"),
            (3 << 30, "3.00 GiB"),
            (5 << 40, "5.00 TiB"),
            (u64::MAX, "16384 PiB"),
        ];
        for (number, expected) in cases {
            assert_eq!(bytes(number), expected);
        }
        assert_eq!(rate_of(10 << 20, 2.0), "5.00 MiB/s");
        assert_eq!(rate_of(1, 0.0), "-");
    }

    #[test]
    fn durations_counts_and_ratios() {
        assert_eq!(duration(0.416), "0.42 s");
        assert_eq!(duration(12.34), "12.3 s");
        assert_eq!(duration(59.96), "1 min 00 s");
        assert_eq!(duration(185.2), "3 min 05 s");
        assert_eq!(duration(7620.0), "2 h 07 min");
        assert_eq!(count(1, "file"), "1 file");
        assert_eq!(count(1_234_567, "file"), "1 234 567 files");
        assert_eq!(ratio(3.0189), "3.02");
        assert_eq!(ratio(f64::INFINITY), "-");
        assert_eq!(percent(0.374), "37 %");
    }
}
