//! Shapes: named sizes, tables of cases, and what cannot be.

use super::BenchError;

/// Sizes by the name of their flag, in the order in which they are shown.
pub type Sizes = Vec<(&'static str, usize)>;

/// The shape of one operator.
pub trait Shape: Copy + PartialEq + 'static {
    /// The operator's name on the command line.
    const OPERATOR: &'static str;

    /// The table of cases.
    fn cases() -> Vec<(&'static str, Self)>;

    /// Its sizes.
    fn sizes(&self) -> Sizes;

    /// Numbers of 4 bytes in its inputs, outputs and gradients together, as far as they are needed at one time.
    fn numbers(&self) -> u128;

    /// Refuses what cannot be.
    ///
    /// # Errors
    /// The first size that is 0 and must not be, or a shape that this machine cannot hold.
    fn check(&self) -> Result<(), BenchError> {
        for (name, value) in self.sizes() {
            let right = match name {
                // A read-out without a window reads selected entries alone.
                "window" => continue,
                "topk" => "an address of no entries selects nothing; it must be 1 or more",
                "pool-size" | "pool-blocks" => "a pool of nothing leaves nothing to search; it must be 1 or more",
                _ => "it must be 1 or more",
            };
            if value == 0 {
                return Err(BenchError::Size { flag: name.into(), value, right });
            }
        }
        // Row numbers are 32-bit integers.
        for (name, value) in self.sizes() {
            if i32::try_from(value).is_err() {
                let right = "row numbers have 32 bits; it must be below 2147483648";
                return Err(BenchError::Size { flag: name.into(), value, right });
            }
        }
        let (need, free) = (self.numbers().saturating_mul(4), free_memory());
        if need > free.unwrap_or(u128::from(u32::MAX) << 8) {
            let bytes = |bytes: u128| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
            return Err(BenchError::TooLarge {
                shape: line(&self.sizes()),
                need: bytes(need),
                free: free.map_or("no machine has as much".into(), |free| format!("{} are free here", bytes(free))),
            });
        }
        Ok(())
    }
}

/// Bytes that a new process could use, where the system tells.
pub fn free_memory() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u128>().ok()? << 10)
}

/// The cases with these names, each with the `change` that flags ask for. Without names: all cases where nothing is
/// changed, else the first alone.
///
/// # Errors
/// A name that is not in the table, or a shape that cannot be.
pub fn chosen<S: Shape>(names: &[String], change: impl Fn(S) -> S) -> Result<Vec<(String, S)>, BenchError> {
    let cases = S::cases();
    let there = || cases.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let unknown = names.iter().find(|name| cases.iter().all(|(case, _)| case != name));
    if let Some(name) = unknown {
        return Err(BenchError::Case { operator: S::OPERATOR, name: name.clone(), there: there() });
    }
    let changed = cases.iter().any(|&(_, shape)| change(shape) != shape);
    let mut kept: Vec<(String, S)> = Vec::new();
    for (index, &(case, shape)) in cases.iter().enumerate() {
        let wanted = if names.is_empty() { !changed || index == 0 } else { names.iter().any(|name| name == case) };
        if wanted {
            let new = change(shape);
            new.check()?;
            kept.push((if new == shape { case.into() } else { format!("{case}, changed") }, new));
        }
    }
    Ok(kept)
}

/// The letters that the report uses.
const LETTERS: [(&str, &str); 15] = [
    ("batch", "B"),
    ("seq", "S"),
    ("layers", "L"),
    ("d-model", "d_model "),
    ("heads", "H"),
    ("dim", "d"),
    ("index-heads", "H_I"),
    ("index-dim", "d_I"),
    ("entries", "N"),
    ("topk", "K"),
    ("window", "W"),
    ("ratio", "m"),
    ("pool-blocks", "pool "),
    ("pool-size", "x"),
    ("points", "points "),
];

/// `B1 S1024 H8 d128 N1024 K64 W128`, as one line.
pub(super) fn line(sizes: &Sizes) -> String {
    let letter = |name: &str| LETTERS.iter().find(|(long, _)| *long == name).map_or("", |(_, letter)| letter);
    let shown = sizes.iter().filter(|size| **size != ("ratio", 1));
    let parts: Vec<String> = shown.map(|(name, value)| format!("{}{value}", letter(name))).collect();
    parts.join(" ").replace(" x", "x")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Fake(usize);

    impl Shape for Fake {
        const OPERATOR: &'static str = "fake";
        fn cases() -> Vec<(&'static str, Self)> {
            vec![("one", Self(1)), ("two", Self(2))]
        }
        fn sizes(&self) -> Sizes {
            vec![("seq", self.0), ("window", 0)]
        }
        fn numbers(&self) -> u128 {
            (self.0 as u128).pow(4)
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn cases_are_chosen_by_name_and_changed_by_flags() {
        let same = |shape: Fake| shape;
        assert_eq!(chosen(&[], same).unwrap(), [("one".into(), Fake(1)), ("two".into(), Fake(2))]);
        assert_eq!(chosen(&names(&["two"]), same).unwrap(), [("two".into(), Fake(2))]);
        let set = |_: Fake| Fake(2);
        assert_eq!(chosen(&[], set).unwrap(), [("one, changed".into(), Fake(2))]);
        assert_eq!(chosen(&names(&["two"]), set).unwrap(), [("two".into(), Fake(2))]);
        let error = chosen(&names(&["ten"]), same).unwrap_err().to_string();
        assert_eq!(error, "fake has no case \"ten\"; there are: one, two");
    }

    #[test]
    fn sizes_that_cannot_be_are_named() {
        let error = |size: usize| chosen(&[], |_| Fake(size)).unwrap_err().to_string();
        assert_eq!(error(0), "--seq 0: it must be 1 or more");
        assert!(error(1 << 31).contains("--seq 2147483648: row numbers have 32 bits"));
        assert!(error(1 << 20).starts_with("S1048576 W0: its inputs, outputs and gradients alone take 4"));
    }

    #[test]
    fn shapes_are_one_line() {
        let sizes = vec![("batch", 1), ("index-heads", 8), ("ratio", 1), ("pool-blocks", 4), ("pool-size", 2)];
        assert_eq!(line(&sizes), "B1 H_I8 pool 4x2");
        assert_eq!(line(&vec![("entries", 5), ("ratio", 2)]), "N5 m2");
    }
}
