//! Reading a JSON object key by key, so that a key that nobody asked for cannot go unnoticed.

use serde_json::{Map, Value};

use super::super::ConfigError;

/// A JSON object whose keys are taken one by one; what is left at the end is unknown.
pub(super) struct Keys {
    map: Map<String, Value>,
    path: String,
}

impl Keys {
    pub(super) fn open(value: &Value, path: &str) -> Result<Self, ConfigError> {
        match value {
            Value::Object(map) => {
                let path = if path.is_empty() { String::new() } else { format!("{path}.") };
                Ok(Self { map: map.clone(), path })
            }
            other => {
                let key = if path.is_empty() { "the whole file" } else { path };
                Err(wrong_type(key.into(), other, "an object"))
            }
        }
    }

    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    fn take(&mut self, key: &str, expected: &'static str) -> Result<Value, ConfigError> {
        self.map.remove(key).ok_or_else(|| ConfigError::HfMissing { key: self.name(key), expected })
    }

    /// The value, left in place; null counts as left out.
    pub(super) fn optional(&mut self, key: &str) -> Option<Value> {
        if self.map.get(key) == Some(&Value::Null) {
            self.map.remove(key);
        }
        self.map.get(key).cloned()
    }

    pub(super) fn size(&mut self, key: &str) -> Result<usize, ConfigError> {
        let value = self.take(key, WHOLE)?;
        as_size(&value).ok_or_else(|| wrong_type(self.name(key), &value, WHOLE))
    }

    pub(super) fn sizes(&mut self, key: &str) -> Result<Vec<usize>, ConfigError> {
        let value = self.take(key, LIST)?;
        let list = value.as_array().and_then(|list| list.iter().map(as_size).collect());
        list.ok_or_else(|| wrong_type(self.name(key), &value, LIST))
    }

    pub(super) fn number(&mut self, key: &str) -> Result<f64, ConfigError> {
        let value = self.take(key, "a number")?;
        value.as_f64().ok_or_else(|| wrong_type(self.name(key), &value, "a number"))
    }

    pub(super) fn object(&mut self, key: &str) -> Result<Self, ConfigError> {
        let value = self.take(key, "an object")?;
        Self::open(&value, &self.name(key))
    }

    /// Accepts one value alone, or none.
    pub(super) fn fixed(&mut self, key: &str, only: &Value) -> Result<(), ConfigError> {
        let Some(found) = self.optional(key) else {
            return Ok(());
        };
        self.ignore(key);
        // 1 and 1.0 are the same number, and a quotient may differ in its last bit.
        let equal = match (found.as_f64(), only.as_f64()) {
            (Some(found), Some(only)) => (found - only).abs() <= 1e-12 * only.abs(),
            _ => found == *only,
        };
        if equal {
            Ok(())
        } else {
            Err(wrong_type(self.name(key), &found, &format!("{only}, all that is supported here")))
        }
    }

    /// The error of a key that must hold something else.
    pub(super) fn refuse(&self, key: &str, found: &Value, expected: &str) -> ConfigError {
        wrong_type(self.name(key), found, expected)
    }

    pub(super) fn ignore(&mut self, key: &str) {
        self.map.remove(key);
    }

    /// Takes the keys that `wanted` picks, with their values.
    pub(super) fn take_all(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<(String, Value)> {
        let names: Vec<String> = self.map.keys().filter(|key| wanted(key)).cloned().collect();
        names.into_iter().filter_map(|key| self.map.remove_entry(&key)).collect()
    }

    pub(super) fn finish(self) -> Result<(), ConfigError> {
        match self.map.iter().next() {
            None => Ok(()),
            Some((key, value)) => Err(ConfigError::HfUnknown { key: self.name(key), found: short(value) }),
        }
    }
}

const WHOLE: &str = "a whole number";
const LIST: &str = "a list of whole numbers";

fn as_size(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| number.try_into().ok())
}

fn wrong_type(key: String, found: &Value, expected: &str) -> ConfigError {
    ConfigError::HfType { key, found: short(found), expected: expected.into() }
}

/// A value as an error message shows it.
pub(super) fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(57).chain("...".chars()).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys() -> Keys {
        Keys::open(&json!({"size": 3, "eps": 1, "list": [1, 2], "nothing": null, "left": "x".repeat(80)}), "outer")
            .unwrap()
    }

    #[test]
    fn values_are_taken_once() {
        let mut keys = keys();
        assert_eq!((keys.size("size"), keys.number("eps")), (Ok(3), Ok(1.0)));
        assert_eq!((keys.sizes("list"), keys.optional("nothing")), (Ok(vec![1, 2]), None));
        assert_eq!(
            keys.size("size").unwrap_err().to_string(),
            "config.json has no `outer.size`; it is needed, as a whole number"
        );
        let left = keys.finish().unwrap_err().to_string();
        assert!(left.starts_with("config.json has `outer.left` = \"xxx"), "{left}");
        assert!(left.contains("...") && left.len() < 220, "{left}");
    }

    #[test]
    fn fixed_values_compare_as_numbers() {
        assert_eq!(keys().fixed("eps", &json!(1.0)), Ok(()));
        assert_eq!(keys().fixed("absent", &json!(1.0)), Ok(()));
        assert!(keys().fixed("size", &json!(4)).is_err());
        assert!(keys().fixed("left", &json!(4)).is_err());
    }
}
