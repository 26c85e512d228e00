//! The `[task]` table of a configuration: the list of kinds, and reading with messages that name
//! the key.

use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::{Auxiliary, MqarConfig, NeedleConfig, Task, TaskError, TextConfig, TwohopConfig};

macro_rules! kinds {
    ($($name:literal => $variant:ident($config:ty),)+) => {
        /// The `[task]` table of a configuration: `kind`, and the keys of that kind. Unknown keys
        /// are rejected.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "kind")]
        pub enum TaskConfig {
            $(
                #[doc = concat!("`kind = \"", $name, "\"`")]
                #[serde(rename = $name)]
                $variant($config),
            )+
        }

        impl TaskConfig {
            /// Every kind there is.
            pub const KINDS: &[&str] = &[$($name),+];

            /// The `kind` key.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)+ }
            }

            /// Checks the configuration and builds the task. Relative paths are taken from
            /// `base_dir`, the folder of the configuration file.
            ///
            /// # Errors
            /// A value that cannot be, or files that cannot be used.
            pub fn build(&self, base_dir: &Path) -> Result<Box<dyn Task>, TaskError> {
                match self { $(Self::$variant(config) => Ok(Box::new(config.build(base_dir)?)),)+ }
            }

            /// The same task in sequences of `tokens` tokens: the one key that decides the length, and nothing else, changes.
            ///
            /// # Errors
            /// When the task cannot be so short.
            pub fn stretched(&self, tokens: usize) -> Result<Self, TaskError> {
                match self { $(Self::$variant(config) => config.stretched(tokens).map(Self::$variant),)+ }
            }

            /// Tokens in each sequence, which is known without the task's data.
            pub fn seq_len(&self) -> usize {
                match self { $(Self::$variant(config) => config.seq_len(),)+ }
            }

            /// The key that [`stretched`](Self::stretched) changes.
            pub fn length_key(&self) -> &'static str {
                match self { $(Self::$variant(config) => config.length_key(),)+ }
            }

            /// The auxiliary head that the task trains, which is known without its data.
            pub fn auxiliary(&self) -> Option<Auxiliary> {
                match self { $(Self::$variant(config) => config.auxiliary(),)+ }
            }

            fn from_table(kind: &str, table: toml::Table) -> Result<Self, String> {
                match kind {
                    $($name => read(kind, table).map(Self::$variant),)+
                    _ => Err(format!("unknown task kind `{kind}`; {}", known_kinds())),
                }
            }
        }
    };
}

kinds! {
    "mqar" => Mqar(MqarConfig),
    "needle" => Needle(NeedleConfig),
    "twohop" => Twohop(TwohopConfig),
    "text" => Text(TextConfig),
}

fn known_kinds() -> String {
    format!("known kinds are `{}`", TaskConfig::KINDS.join("`, `"))
}

fn read<T: serde::de::DeserializeOwned>(kind: &str, table: toml::Table) -> Result<T, String> {
    // The error's second line names the key; one line reads better inside another message.
    table.try_into().map_err(|error: toml::de::Error| {
        let message = error.to_string();
        format!("task `{kind}`: {}", message.trim_end().replace('\n', " "))
    })
}

/// By hand, because the derived form of a tagged enum forgets which key held the wrong value.
impl<'de> Deserialize<'de> for TaskConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = toml::Table::deserialize(deserializer)?;
        match table.remove("kind") {
            Some(toml::Value::String(kind)) => Self::from_table(&kind, table).map_err(D::Error::custom),
            Some(other) => Err(D::Error::custom(format!(
                "the task's `kind` must be a string, not {}; {}",
                other.type_str(),
                known_kinds()
            ))),
            None => Err(D::Error::custom(format!("the task has no `kind`; {}", known_kinds()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        task: TaskConfig,
    }

    fn parse(toml: &str) -> Result<TaskConfig, String> {
        toml::from_str::<File>(toml).map(|file| file.task).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_left_out_take_their_defaults() {
        let mqar = parse("[task]\nkind = \"mqar\"\npairs = 4").unwrap();
        assert_eq!(mqar, TaskConfig::Mqar(MqarConfig { pairs: 4, ..MqarConfig::default() }));
        let twohop = parse("[task]\nkind = \"twohop\"\ntwo_hop_share = 1\nordered = true").unwrap();
        let expected = TwohopConfig { two_hop_share: 1.0, ordered: true, ..TwohopConfig::default() };
        assert_eq!(twohop, TaskConfig::Twohop(expected));
        let text = parse("task = { kind = \"text\", files = [\"a\"] }").unwrap();
        assert_eq!(text, TaskConfig::Text(TextConfig::new(vec!["a".into()])));
    }

    #[test]
    fn every_kind_is_written_and_read_back() {
        for config in [
            TaskConfig::Mqar(MqarConfig { gap: 9, ..MqarConfig::default() }),
            TaskConfig::Needle(NeedleConfig { facts: 3, ..NeedleConfig::default() }),
            TaskConfig::Twohop(TwohopConfig { hint_weight: 0.1, ..TwohopConfig::default() }),
            TaskConfig::Text(TextConfig { seq_len: 64, ..TextConfig::new(vec!["a/*.gz".into()]) }),
        ] {
            let table = toml::Table::try_from(&config).unwrap();
            assert_eq!(table["kind"].as_str(), Some(config.kind()));
            assert_eq!(parse(&format!("[task]\n{table}")).unwrap(), config);
            let json = serde_json::to_string(&config).unwrap();
            assert_eq!(serde_json::from_str::<TaskConfig>(&json).unwrap(), config);
        }
    }

    #[test]
    fn bad_tables_get_a_message() {
        for (toml, parts) in [
            ("kind = \"mqr\"", &["unknown task kind `mqr`", "known kinds are `mqar`, `needle`, `twohop`, `text`"][..]),
            ("pairs = 4", &["the task has no `kind`", "known kinds are `mqar`"]),
            ("kind = 4", &["`kind` must be a string, not integer", "known kinds are `mqar`"]),
            ("kind = \"mqar\"\npair = 4", &["task `mqar`: unknown field `pair`, expected one of `pairs`, `keys`"]),
            ("kind = \"twohop\"\nordered = 1", &["task `twohop`: ", "expected a boolean in `ordered`"]),
            ("kind = \"mqar\"\npairs = \"six\"", &["task `mqar`: ", "string \"six\"", "in `pairs`"]),
            ("kind = \"mqar\"\npairs = -1", &["task `mqar`: ", "`-1`", "in `pairs`"]),
            ("kind = \"mqar\"\nfiles = []", &["task `mqar`: unknown field `files`"]),
            ("kind = \"text\"", &["task `text`: missing field `files`"]),
            ("kind = \"text\"\nfiles = \"a\"", &["task `text`: ", "expected a sequence in `files`"]),
            ("kind = \"text\"\nfiles = []\nwindow = 8", &["task `text`: unknown field `window`"]),
        ] {
            let error = parse(&format!("[task]\n{toml}")).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn build_gives_the_task_of_the_kind_or_its_error() {
        let folder = tempfile::tempdir().unwrap();
        for config in [TaskConfig::Mqar(MqarConfig::default()), TaskConfig::Twohop(TwohopConfig::default())] {
            let task = config.build(folder.path()).unwrap();
            assert_eq!((task.kind(), task.seq_len()), (config.kind(), config.seq_len()));
        }
        let text = TaskConfig::Text(TextConfig::new(vec!["none".into()]));
        let error = text.build(folder.path()).err().unwrap().to_string();
        assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
    }
}
