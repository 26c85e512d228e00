//! How much memory caches may take.

use crate::SessionError;

/// A bound on the host's memory for a session's caches, held against what they would need with every row full. What a GPU holds of them
/// besides (see [`Caches::device_bytes`](crate::Caches::device_bytes)) is not counted: its driver does not tell what is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Limit {
    /// What the system says is free when the session starts. Known on Linux; elsewhere a session asks for a limit in bytes.
    #[default]
    Free,
    /// So many bytes.
    Bytes(u64),
}

impl Limit {
    /// The bound in bytes.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn bytes(self) -> Result<u64, SessionError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Free => {
                let text = std::fs::read_to_string("/proc/meminfo").map_err(|_| SessionError::MemoryUnknown)?;
                free(&text).ok_or(SessionError::MemoryUnknown)
            }
        }
    }
}

/// Free memory in bytes, from the text in which Linux tells it.
fn free(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_in_kilobytes() {
        assert_eq!(free("MemTotal:  10 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(free("MemTotal:  10 kB\n"), None);
        assert_eq!(free("MemAvailable: much\n"), None);
    }
}
