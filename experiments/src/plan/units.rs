//! Numbers as people read them.

/// A count with a decimal prefix: `815`, `185.0 k`, `15.8 B`.
pub fn count(number: u128) -> String {
    scaled(number as f64, 1000.0, &["", "k", "M", "B", "T"], "")
}

/// Bytes with a binary prefix: `890 B`, `2.6 MiB`.
pub fn bytes(number: f64) -> String {
    scaled(number, 1024.0, &["", "Ki", "Mi", "Gi", "Ti"], "B")
}

/// A context length with a binary prefix: `4K`, `1M`.
pub(super) fn context(tokens: u64) -> String {
    match tokens {
        t if t >= 1 << 20 && t.is_multiple_of(1 << 20) => format!("{}M", t >> 20),
        t if t >= 1 << 10 && t.is_multiple_of(1 << 10) => format!("{}K", t >> 10),
        t => t.to_string(),
    }
}

/// One unit for a whole table of operations, chosen by its largest number: the divisor and the unit's name.
pub(super) fn flop_unit(largest: f64) -> (f64, &'static str) {
    let units = [(1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP")];
    units.into_iter().find(|(size, _)| largest >= *size).unwrap_or((1.0, "FLOP"))
}

/// A number of bytes per token, with one decimal only where it is not whole.
pub(super) fn fraction(number: f64) -> String {
    if number.fract() == 0.0 { format!("{number:.0}") } else { format!("{number:.1}") }
}

fn scaled(number: f64, step: f64, prefixes: &[&str], unit: &str) -> String {
    let mut value = number;
    let mut prefix = "";
    for next in prefixes {
        prefix = next;
        // What would be printed as a full step belongs to the next prefix.
        if value < step - 0.05 {
            break;
        }
        if *next != prefixes.last().copied().unwrap_or_default() {
            value /= step;
        }
    }
    let name = format!("{prefix}{unit}");
    let digits = if prefix.is_empty() { fraction(value) } else { format!("{value:.1}") };
    if name.is_empty() { digits } else { format!("{digits} {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1.0 k");
        assert_eq!(count(184_968), "185.0 k");
        assert_eq!(count(999_960), "1.0 M");
        assert_eq!(count(551_600_000_000), "551.6 B");
        assert_eq!(count(12_345_000_000_000_000), "12345.0 T");
    }

    #[test]
    fn byte_counts() {
        assert_eq!(bytes(890.0), "890 B");
        assert_eq!(bytes(42.666), "42.7 B");
        assert_eq!(bytes(1024.0), "1.0 KiB");
        assert_eq!(bytes(2_703_360.0), "2.6 MiB");
    }

    #[test]
    fn contexts() {
        assert_eq!([4096, 65_536, 1 << 20, 1000, 5 << 20].map(context), ["4K", "64K", "1M", "1000", "5M"]);
    }

    #[test]
    fn units_of_operations() {
        assert_eq!(flop_unit(3.2e10), (1e9, "GFLOP"));
        assert_eq!(flop_unit(12.0), (1.0, "FLOP"));
    }
}
