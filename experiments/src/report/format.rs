//! Numbers and names as they are printed, and the escaping of each output language.

use crate::stats::Estimate;

/// A metric value, with four decimals where it is small enough for them to mean something.
pub fn value(value: f64) -> String {
    let decimals = if value.abs() < 100.0 { 4 } else { 1 };
    let text = format!("{value:.decimals$}");
    // -0.00001 rounds to "-0.0000".
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|digit| matches!(digit, '0' | '.')) => rest.to_owned(),
        Some(rest) => format!("−{rest}"),
        None => text,
    }
}

/// A difference, always with its sign, except for zero.
pub fn signed(difference: f64) -> String {
    let text = value(difference);
    let is_zero = text.chars().all(|digit| matches!(digit, '0' | '.'));
    if is_zero || text.starts_with('−') { text } else { format!("+{text}") }
}

/// `mean ± half width`, or the mean alone where one value gives no interval.
pub fn estimate(estimate: &Estimate, print: fn(f64) -> String) -> String {
    match estimate.half_width {
        // A narrow interval is not printed as none.
        Some(half) if half > 0.0 && half < 5e-5 => format!("{} ± <0.0001", print(estimate.mean)),
        Some(half) => format!("{} ± {}", print(estimate.mean), value(half)),
        None => print(estimate.mean),
    }
}

/// `1 seed` or `n seeds`.
pub fn seeds(n: usize) -> String {
    plural(n, "seed")
}

/// `1 thing` or `n things`.
pub fn plural(n: usize, thing: &str) -> String {
    if n == 1 { format!("1 {thing}") } else { format!("{n} {thing}s") }
}

/// A count with three or four significant digits and a decimal prefix: 890, 52.5, 185k, 15.7B.
pub fn count(number: f64) -> String {
    if !number.is_finite() {
        return "–".to_owned();
    }
    let size = number.abs();
    if size < 10_000.0 {
        return trim(format!("{number:.*}", usize::from(size < 100.0)));
    }
    for (unit, suffix) in [(1e3, "k"), (1e6, "M"), (1e9, "B"), (1e12, "T")] {
        let scaled = number / unit;
        if scaled.abs() < 999.5 || suffix == "T" {
            let decimals = if scaled.abs() < 9.995 { 2 } else { usize::from(scaled.abs() < 99.95) };
            return format!("{}{suffix}", trim(format!("{scaled:.decimals$}")));
        }
    }
    format!("{number:e}")
}

/// A context length in the binary thousands of the field: 4096 is 4K.
pub fn context(tokens: u64) -> String {
    const KIBI: u64 = 1024;
    match tokens {
        0 => "0".to_owned(),
        tokens if tokens % (KIBI * KIBI) == 0 => format!("{}M", tokens / (KIBI * KIBI)),
        tokens if tokens % KIBI == 0 => format!("{}K", tokens / KIBI),
        tokens => tokens.to_string(),
    }
}

/// Removes trailing zeros of a decimal fraction.
fn trim(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Shortens a long name in its middle, where names of one ablation differ least.
pub fn shorten(name: &str, limit: usize) -> String {
    let characters: Vec<char> = name.chars().collect();
    if characters.len() <= limit || limit < 5 {
        return name.to_owned();
    }
    let front = (limit - 1).div_ceil(2);
    let back = limit - 1 - front;
    let tail = &characters[characters.len() - back..];
    characters[..front].iter().chain(['…'].iter()).chain(tail).collect()
}

/// `text` with its first letter in upper case, for headings.
pub fn heading(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

/// Text for HTML, in elements and in quoted attributes.
pub fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// Text for Markdown, in a table cell as well as outside: one line, with every mark-up character escaped.
pub fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '|' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '~' | '&' | '$' => {
                out.push('\\');
                out.push(character);
            }
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

/// A CSV field as RFC 4180 quotes it.
pub fn csv(field: &str) -> String {
    if field.contains(['"', ',', '\n', '\r']) || field.trim() != field {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// Text for a terminal: control characters, which could move the cursor or recolour the screen, become spaces.
pub fn terminal(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_keep_three_digits() {
        let table = [
            (0.0, "0"),
            (52.5, "52.5"),
            (356.0, "356"),
            (890.0, "890"),
            (9_999.0, "9999"),
            (184_960.0, "185k"),
            (999_700.0, "1M"),
            (480_000.0, "480k"),
            (1_234_567.0, "1.23M"),
            (15.7e9, "15.7B"),
            (1e16, "10000T"),
            (f64::NAN, "–"),
        ];
        for (number, expected) in table {
            assert_eq!(count(number), expected);
        }
    }

    #[test]
    fn values_never_show_a_negative_zero() {
        assert_eq!(value(-0.000_01), "0.0000");
        assert_eq!(signed(-0.000_01), "0.0000");
        assert_eq!(signed(0.25), "+0.2500");
        assert_eq!(signed(-0.25), "−0.2500");
        assert_eq!(value(1234.56), "1234.6");
    }

    #[test]
    fn contexts_are_binary() {
        assert_eq!(context(4096), "4K");
        assert_eq!(context(1_048_576), "1M");
        assert_eq!(context(1000), "1000");
    }

    #[test]
    fn one_seed_prints_no_interval() {
        let one = Estimate { n: 1, mean: 0.5, sd: None, half_width: None };
        assert_eq!(estimate(&one, value), "0.5000");
        let two = Estimate { n: 2, mean: 0.5, sd: Some(0.1), half_width: Some(0.9) };
        assert_eq!(estimate(&two, signed), "+0.5000 ± 0.9000");
        let narrow = Estimate { half_width: Some(1e-5), ..two };
        assert_eq!(estimate(&narrow, value), "0.5000 ± <0.0001");
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shorten("short", 10), "short");
        assert_eq!(shorten("full-reuse-every-third-layer", 11), "full-…layer");
        assert_eq!(shorten("äöüäöüäöü", 5), "äö…öü");
    }

    #[test]
    fn mark_up_is_escaped() {
        assert_eq!(html("<b a=\"'&'\">"), "&lt;b a=&quot;&#39;&amp;&#39;&quot;&gt;");
        assert_eq!(markdown("swa*2|`x`\n"), "swa\\*2\\|\\`x\\` ");
        assert_eq!(csv("plain"), "plain");
        assert_eq!(csv("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(terminal("a\u{1b}[31mb"), "a [31mb");
    }
}
