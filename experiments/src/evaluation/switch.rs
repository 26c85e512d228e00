//! What is switched in a trained model: each switch makes one more model of the same weights.
//!
//! A further kind of switch is a variant of [`Switch`], its text in `from_str` and `fmt`, and what it makes of a [`Setting`] in
//! [`Switch::apply`].

use std::fmt;
use std::str::FromStr;

use csa2_model::config::{ModelConfig, PoolConfig, QuantFormat, QuantizationConfig};
use csa2_model::mix::LayerPlan;

use super::replay;
use crate::ablation::TRAINED;

/// One thing that is otherwise than the weights were trained with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// The number formats that cached vectors are rounded to.
    Quantization(Formats),
    /// The candidate pool; none where every visible entry is searched.
    Pool(Option<PoolConfig>),
    /// The last tokens of a prompt, so many, alone go through the decoder.
    Replay(usize),
}

/// Number formats, as a switch says them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Formats {
    /// Those of the model's configuration.
    On,
    /// None.
    Off,
    /// These.
    Named(QuantizationConfig),
}

/// How the weights are measured: one row of the results for every context length.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Its name, [`TRAINED`] or that of its switch.
    pub name: String,
    /// The model.
    pub model: ModelConfig,
    /// Tokens of a bounded replay, where there is one.
    pub replay: Option<usize>,
    /// In words, that the weights were trained with another candidate pool.
    pub pool_mismatch: Option<String>,
    /// In words, that the weights were trained with other number formats.
    pub quantization_mismatch: Option<String>,
}

impl Setting {
    /// The setting of `model`, whose weights were trained as `trained`.
    pub fn new(name: String, model: ModelConfig, trained: &ModelConfig) -> Self {
        let told =
            |was: String, is: String| (was != is).then(|| format!("weights trained with {was}, measured with {is}"));
        Self {
            pool_mismatch: told(pool_words(&trained.layers, trained.pool), pool_words(&model.layers, model.pool)),
            quantization_mismatch: told(formats_words(trained.quantization), formats_words(model.quantization)),
            name,
            model,
            replay: None,
        }
    }

    /// What the weights were not trained with, in words.
    pub fn mismatch(&self) -> Option<String> {
        let parts: Vec<String> =
            [&self.pool_mismatch, &self.quantization_mismatch].into_iter().flatten().cloned().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

impl Switch {
    /// The setting `from` with this switched.
    ///
    /// # Errors
    /// A sentence that says why there is nothing to switch.
    pub fn apply(self, from: &Setting, trained: &ModelConfig) -> Result<Setting, String> {
        let mut model = from.model.clone();
        match self {
            Self::Quantization(formats) => model.quantization = formats.of(from.model.quantization)?,
            Self::Replay(tokens) => {
                replay::check(&model, tokens)?;
                let name = self.to_string();
                return Ok(Setting { name, replay: Some(tokens), ..from.clone() });
            }
            Self::Pool(None) => {
                if model.pool.is_none() {
                    return Err(format!(
                        "no layer of `{}` builds a candidate pool, so there is none to leave out",
                        model.layers
                    ));
                }
                (model.layers, model.pool) = (model.layers.with_pools(false), None);
            }
            Self::Pool(Some(pool)) => {
                if !model.layers.has_pool() {
                    model.layers = model.layers.with_pools(true);
                }
                if !model.layers.has_pool() {
                    return Err(format!(
                        "no `reindex` layer of `{}` searches the content of a `full` below it, and only such a layer would search in a \
                         candidate pool; measure a mix with `full … reindex`",
                        model.layers
                    ));
                }
                model.pool = Some(pool);
            }
        }
        model.validate().map_err(|error| error.to_string())?;
        if model == from.model {
            return Err("that is the model that is measured anyway; leave it away".into());
        }
        Ok(Setting::new(self.to_string(), model, trained))
    }
}

impl Formats {
    fn of(self, here: QuantizationConfig) -> Result<QuantizationConfig, String> {
        match self {
            Self::On if here.any() => {
                Err(format!("it is on anyway ({}); leave it away, or switch it off", formats_words(here)))
            }
            Self::On => Err("the run's configuration names no formats that could be switched on; name those of main KV, index and window, \
                             as in quantization=fp4/fp4/fp8"
                .into()),
            Self::Off if here.any() => Ok(QuantizationConfig::default()),
            Self::Off => Err("the run has no quantization to switch off".into()),
            Self::Named(formats) => Ok(formats),
        }
    }
}

/// The candidate pool in words.
pub fn pool_words(layers: &LayerPlan, pool: Option<PoolConfig>) -> String {
    let Some(pool) = pool else { return "no candidate pool".into() };
    let builders = layers.layers().iter().filter(|layer| layer.builds_pool).map(|layer| layer.index.to_string());
    let layers: Vec<String> = builders.collect();
    format!("a candidate pool of {}x{} (layer {})", pool.blocks, pool.block_size, layers.join(", "))
}

/// Number formats in words.
pub fn formats_words(formats: QuantizationConfig) -> String {
    if !formats.any() {
        return "no quantization".into();
    }
    let [main, index, window] = [formats.main_kv, formats.index, formats.window].map(QuantFormat::name);
    format!("quantization (main KV {main}, index {index}, window {window})")
}

/// `4x2`.
///
/// # Errors
/// When that is no pool's size.
pub fn parse_pool(text: &str) -> Result<PoolConfig, String> {
    let number = |text: &str| text.parse::<usize>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let parts = text.split_once('x').and_then(|(blocks, size)| Some((number(blocks)?, number(size)?)));
    let (blocks, block_size) = parts.ok_or("a pool is blocks x entries, such as 4x2")?;
    Ok(PoolConfig { blocks, block_size })
}

/// `fp4/fp4/fp8`: the formats of main KV, index and window.
///
/// # Errors
/// When those are not three known formats.
pub fn parse_named_formats(text: &str) -> Result<QuantizationConfig, String> {
    const WRONG: &str = "formats are those of main KV, index and window, each none, fp8 or fp4, such as fp4/fp4/fp8";
    let format = |name: &str| {
        [QuantFormat::None, QuantFormat::Fp8, QuantFormat::Fp4].into_iter().find(|format| format.name() == name)
    };
    let named: Vec<QuantFormat> = text.split('/').map(format).collect::<Option<_>>().ok_or(WRONG)?;
    let [main_kv, index, window] = named[..] else { return Err(WRONG.into()) };
    Ok(QuantizationConfig { main_kv, index, window })
}

fn parse_formats(text: &str) -> Result<Formats, String> {
    const WRONG: &str = "quantization is on, off, or the formats of main KV, index and window, each none, fp8 or fp4, such as fp4/fp4/fp8";
    match text {
        "on" => return Ok(Formats::On),
        "off" => return Ok(Formats::Off),
        _ => {}
    }
    let formats = parse_named_formats(text).map_err(|_| WRONG)?;
    if formats.any() {
        Ok(Formats::Named(formats))
    } else {
        Err("none of them is quantized; say quantization=off".into())
    }
}

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("quantization", formats)) => parse_formats(formats).map(Self::Quantization),
            Some(("pool", "off")) => Ok(Self::Pool(None)),
            Some(("replay", tokens)) => {
                let digits = !tokens.is_empty() && tokens.bytes().all(|byte| byte.is_ascii_digit());
                let tokens = tokens.parse().ok().filter(|_| digits);
                tokens.map(Self::Replay).ok_or_else(|| "a replay is a number of tokens, such as replay=128".into())
            }
            Some(("pool", size)) => {
                parse_pool(size).map(|pool| Self::Pool(Some(pool))).map_err(|wrong| wrong + ", or off")
            }
            _ => {
                Err("a switch is quantization=on, quantization=off, quantization=fp4/fp4/fp8, pool=off, pool=4x2 or replay=128"
                    .into())
            }
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantization(Formats::On) => f.write_str("quantization=on"),
            Self::Quantization(Formats::Off) => f.write_str("quantization=off"),
            Self::Quantization(Formats::Named(formats)) => {
                let [main, index, window] = [formats.main_kv, formats.index, formats.window].map(QuantFormat::name);
                write!(f, "quantization={main}/{index}/{window}")
            }
            Self::Replay(tokens) => write!(f, "replay={tokens}"),
            Self::Pool(None) => f.write_str("pool=off"),
            Self::Pool(Some(pool)) => write!(f, "pool={}x{}", pool.blocks, pool.block_size),
        }
    }
}

/// All settings: `base`, and one more for each switch.
///
/// # Errors
/// The switch that is wrong, and why.
pub fn settings(base: Setting, switches: &[Switch], trained: &ModelConfig) -> Result<Vec<Setting>, (Switch, String)> {
    let mut settings = vec![base];
    for (place, &switch) in switches.iter().enumerate() {
        if switches[..place].contains(&switch) {
            return Err((switch, "is given twice; every switch is one row".into()));
        }
        settings.push(switch.apply(&settings[0], trained).map_err(|message| (switch, message))?);
    }
    Ok(settings)
}

/// The name of the setting in which nothing is switched.
pub fn base_name(model: &ModelConfig, trained: &ModelConfig) -> String {
    if model == trained { TRAINED.into() } else { "as --layers and --pool say".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::testing::config;

    #[test]
    fn pools() {
        assert_eq!(parse_pool("4x2"), Ok(PoolConfig { blocks: 4, block_size: 2 }));
        for wrong in ["", "4", "4x", "x2", "4x2x1", "4 x 2", "-4x2", "+4x2", "4X2", "99999999999999999999x1"] {
            assert!(parse_pool(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn switches_print_as_they_are_written() {
        for text in
            ["quantization=on", "quantization=off", "quantization=fp4/none/fp8", "pool=off", "pool=16x2", "replay=8"]
        {
            assert_eq!(text.parse::<Switch>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("", "a switch is"),
            ("replay=on", "such as replay=128"),
            ("replay=", "such as replay=128"),
            ("replay=+8", "such as replay=128"),
            ("replays=8", "a switch is"),
            ("pool", "a switch is"),
            ("pool=on", "such as 4x2, or off"),
            ("quantization=fp4", "such as fp4/fp4/fp8"),
            ("quantization=fp4/fp4/fp4/fp4", "such as fp4/fp4/fp8"),
            ("quantization=none/none/none", "say quantization=off"),
        ] {
            let message = text.parse::<Switch>().unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    fn applied(mix: &str, quantized: bool, switch: &str) -> Result<Setting, String> {
        let mut model = config(mix).model;
        if mix.contains("+pool") {
            model.pool = Some(PoolConfig { blocks: 2, block_size: 2 });
        }
        // So many numbers as share a scale.
        model.head_dim = 32;
        if quantized {
            model.quantization.window = QuantFormat::Fp8;
        }
        let base = Setting::new(TRAINED.into(), model.clone(), &model);
        assert_eq!(base.mismatch(), None);
        switch.parse::<Switch>().unwrap().apply(&base, &model)
    }

    #[test]
    fn what_a_switch_makes_of_a_model() {
        let off = applied("swa full+pool reindex", false, "pool=off").unwrap();
        assert_eq!((off.model.layers.to_string(), off.model.pool), ("swa full reindex".into(), None));
        assert_eq!(
            off.mismatch().unwrap(),
            "weights trained with a candidate pool of 2x2 (layer 1), measured with no candidate pool"
        );
        let built = applied("full reuse full reindex", false, "pool=1x3").unwrap();
        assert_eq!(built.model.layers, "full reuse full+pool reindex".parse().unwrap());
        assert_eq!(built.model.pool, Some(PoolConfig { blocks: 1, block_size: 3 }));
        assert!(applied("swa full+pool reindex", false, "pool=4x2").unwrap().pool_mismatch.is_some());

        let exact = applied("full reuse", true, "quantization=off").unwrap();
        assert!(!exact.model.quantization.any() && exact.pool_mismatch.is_none());
        assert!(exact.mismatch().unwrap().ends_with("window fp8), measured with no quantization"), "{exact:?}");
    }

    #[test]
    fn what_cannot_be_switched_is_refused_with_the_reason() {
        for (mix, quantized, switch, part) in [
            ("full reuse", false, "pool=off", "no layer of `full reuse` builds a candidate pool"),
            ("full reuse", false, "pool=4x2", "no `reindex` layer of `full reuse` searches"),
            ("full+pool reindex", false, "pool=2x2", "is the model that is measured anyway"),
            ("full+pool reindex", false, "pool=0x2", "pool.blocks"),
            ("full reuse", false, "quantization=off", "has no quantization to switch off"),
            ("full reuse", false, "quantization=on", "names no formats"),
            ("full reuse", true, "quantization=on", "it is on anyway"),
            ("full reuse", true, "quantization=none/none/fp8", "is the model that is measured anyway"),
            ("full reuse", false, "quantization=none/fp4/none", "index_dim"),
            ("swa*2", false, "replay=128", "no layer of `swa*2` is `full`"),
            ("full reuse", false, "replay=0", "would not be whole behind a replay of 0"),
        ] {
            let message = applied(mix, quantized, switch).unwrap_err();
            assert!(message.contains(part), "{switch}: {message}");
        }
    }
}
