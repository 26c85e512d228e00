//! Context lengths on the command line.

use std::fmt;
use std::str::FromStr;

use crate::report::context_label;

/// Tokens of the longest context that can be asked for: entries are numbered in 31 bits.
const MOST: u64 = 1 << 30;

/// Context lengths, ascending, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contexts(Vec<u64>);

impl Contexts {
    /// The lengths in tokens.
    pub fn lengths(&self) -> &[u64] {
        &self.0
    }

    /// The shortest.
    pub fn shortest(&self) -> u64 {
        self.0[0]
    }

    /// The longest.
    pub fn longest(&self) -> u64 {
        self.0[self.0.len() - 1]
    }
}

impl Default for Contexts {
    /// 4K.
    fn default() -> Self {
        Self(vec![4 << 10])
    }
}

impl fmt::Display for Contexts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels: Vec<String> = self.0.iter().map(|&length| context_label(length)).collect();
        formatter.write_str(&labels.join(","))
    }
}

impl FromStr for Contexts {
    type Err = String;

    /// `4K..512K`, doubled from the first to the last, both ends included, or a list such as `16K,512K`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((first, last)) = text.split_once("..") {
            let (first, last) = (length(first)?, length(last)?);
            if first >= last {
                let (first, last) = (context_label(first), context_label(last));
                return Err(format!(
                    "a range goes from the shorter to the longer context, but {first} is not below {last}"
                ));
            }
            let doubled = std::iter::successors(Some(first), |length| Some(2 * length));
            let mut lengths: Vec<u64> = doubled.take_while(|&length| length < last).collect();
            lengths.push(last);
            return Ok(Self(lengths));
        }
        let lengths = text.split(',').map(length).collect::<Result<Vec<u64>, String>>()?;
        if let Some(pair) = lengths.windows(2).find(|pair| pair[0] >= pair[1]) {
            let [first, second] = [pair[0], pair[1]].map(context_label);
            return Err(format!("a list ascends, each context once, but {second} comes after {first}"));
        }
        Ok(Self(lengths))
    }
}

/// `512K` is 512 x 1024.
fn length(text: &str) -> Result<u64, String> {
    let right = "write tokens as digits, with K (1024) or M (1024 K) behind where they are many, such as 16K";
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(format!("\"{text}\" is no context; {right}"));
    }
    let tokens = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    match tokens {
        Some(0) => Err("a context of 0 tokens has nothing to decode from".into()),
        Some(tokens) if tokens <= MOST => Ok(tokens),
        _ => Err(format!("{text} is more than {}, the most that entries can be numbered for", context_label(MOST))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(text: &str) -> Vec<u64> {
        text.parse::<Contexts>().unwrap_or_else(|error| panic!("{text}: {error}")).0
    }

    #[test]
    fn ranges_are_doubled_and_hold_both_ends() {
        assert_eq!(lengths("4K..32K"), [4096, 8192, 16384, 32768]);
        assert_eq!(lengths("1K..3K"), [1024, 2048, 3072]);
        assert_eq!(lengths("3..4"), [3, 4]);
        assert_eq!(lengths("512K..1M"), [1 << 19, 1 << 20]);
        assert_eq!(lengths("1M..1024M").len(), 11);
    }

    #[test]
    fn lists_are_taken_as_they_are() {
        assert_eq!(lengths("16K,512K"), [16384, 524_288]);
        assert_eq!(lengths("100"), [100]);
        let contexts: Contexts = "100,1024,1M".parse().unwrap();
        assert_eq!((contexts.shortest(), contexts.longest(), contexts.to_string()), (100, 1 << 20, "100,1K,1M".into()));
    }

    #[test]
    fn anything_else_is_refused_with_what_would_be_right() {
        for (text, part) in [
            ("", "\"\" is no context; write tokens as digits"),
            ("..", "\"\" is no context"),
            ("4K..", "\"\" is no context"),
            ("..4K", "\"\" is no context"),
            ("5Q", "\"5Q\" is no context"),
            ("4k", "\"4k\" is no context"),
            ("K", "\"K\" is no context"),
            ("+4K", "\"+4K\" is no context"),
            ("-4K", "\"-4K\" is no context"),
            ("4 K", "\"4 K\" is no context"),
            ("1.5K", "\"1.5K\" is no context"),
            ("4KK", "\"4KK\" is no context"),
            ("4K..8K..16K", "\"8K..16K\" is no context"),
            ("4K...8K", "\".8K\" is no context"),
            ("4K,,8K", "\"\" is no context"),
            ("0", "a context of 0 tokens"),
            ("0K..4K", "a context of 0 tokens"),
            ("8K..4K", "8K is not below 4K"),
            ("4K..4K", "4K is not below 4K"),
            ("8K,4K", "4K comes after 8K"),
            ("4K,4096", "4K comes after 4K"),
            ("1025M", "1025M is more than 1024M"),
            ("99999999999999999999", "is more than 1024M"),
            ("99999999999999999M", "is more than 1024M"),
        ] {
            let message = text.parse::<Contexts>().unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
