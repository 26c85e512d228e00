//! A session: a model, the past of some rows, and what was counted on the way.

mod decode;
mod prefill;
mod replay;

use std::sync::{Arc, OnceLock};

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use csa2_model::config::{ModelConfig, Values};
use csa2_model::cost::Cost;
use csa2_model::model::{Model, check};
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use csa2_model::ops::{GPU_CHANNELS, stored};

pub use replay::{Bounded, decoder, exact_replay};

use crate::identity::{Identity, other_than_f32};
use crate::{Bytes, Caches, Limit, SessionError};

/// The settings of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Tokens that a row may have.
    pub max_tokens: usize,
    /// Memory that caches may take.
    pub memory: Limit,
    /// Whether vectors are stored in the number formats of the model's configuration (default), or all in f32.
    pub quantize: bool,
    /// Tokens, over all rows, that go through the network together while prompts are read (default 512).
    pub pass: usize,
}

impl Options {
    /// For rows of up to `max_tokens` tokens.
    pub fn new(max_tokens: usize) -> Self {
        Self { max_tokens, memory: Limit::default(), quantize: true, pass: 512 }
    }
}

/// Sequences that are continued: reads prompts in pieces of any length, then decodes a token a row at a time.
///
/// ```
/// # use burn::tensor::Device;
/// # use csa2_model::{config::ModelConfig, init::initialize, model::Model};
/// # use rand::SeedableRng;
/// use csa2_infer::{Options, Session};
///
/// # let device = Device::flex();
/// # let mut config = ModelConfig::small().unwrap();
/// # config.vocab_size = Some(16);
/// # let model = initialize(Model::new(&config, None, &device).unwrap(), 0.0, |_| rand_chacha::ChaCha8Rng::seed_from_u64(1));
/// // Two rows of up to 100 tokens, prompts of different lengths.
/// let mut session = Session::new(&model, &config, 2, Options::new(100))?;
/// let mut logits = session.prefill(&[vec![3, 1, 4], vec![1, 5]])?;
/// for _ in 0..5 {
///     let best: Vec<i32> = logits.argmax(1).into_data().convert::<i32>().iter().collect();
///     logits = session.decode(&best)?;
/// }
/// assert_eq!(session.lengths(), [8, 7]);
/// // What both have read is shared from here on.
/// let mut other = session.fork();
/// other.decode(&[2, 7])?;
/// # Ok::<(), csa2_infer::SessionError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    model: Arc<Model>,
    config: Arc<ModelConfig>,
    device: Device,
    options: Options,
    vocabulary: usize,
    pub(crate) caches: Caches,
    scored: Vec<u64>,
    selections: Vec<Option<Tensor<3, Int>>>,
    identity: Arc<OnceLock<Identity>>,
    /// Rows whose windows have not been made yet.
    pub(crate) without_windows: Vec<bool>,
    /// A pass has failed half-way: the caches are not those of any sequence.
    broken: bool,
}

impl Session {
    /// A session of `rows` rows without a past.
    ///
    /// # Errors
    /// When the model is not in f32, not that of the configuration or one with unrotated values, there are no rows, full caches would not fit
    /// the memory, or vectors are too long for a GPU.
    pub fn new(model: &Model, config: &ModelConfig, rows: usize, options: Options) -> Result<Self, SessionError> {
        let vocabulary = check(config, None).map_err(|error| SessionError::Configuration(error.to_string()))?;
        if let Some(found) = other_than_f32(model) {
            return Err(SessionError::Precision { found: format!("{found:?}") });
        }
        same_layers(model, config)?;
        if config.values != Values::Rotated {
            return Err(SessionError::Values);
        }
        if rows == 0 {
            return Err(SessionError::NoRows);
        }
        let (needed, available) = (needed(config, rows, options), options.memory.bytes()?);
        if needed > u128::from(available) {
            return Err(SessionError::Memory { rows, tokens: options.max_tokens, needed, available });
        }
        #[cfg(any(feature = "wgpu", feature = "cuda"))]
        if config.head_dim > GPU_CHANNELS && stored::has_kernels(&device_of(model)) {
            return Err(SessionError::Channels { found: config.head_dim, most: GPU_CHANNELS });
        }
        // A model that learns is on a device that records what is done; a session needs no gradients.
        let model = model.valid();
        let device = device_of(&model);
        Ok(Self {
            caches: Caches::new(config, rows, options.quantize),
            scored: vec![0; config.layers.len()],
            selections: vec![None; config.layers.len()],
            model: Arc::new(model),
            config: Arc::new(config.clone()),
            device,
            options,
            vocabulary,
            identity: Arc::default(),
            without_windows: vec![false; rows],
            broken: false,
        })
    }

    /// The settings.
    pub fn options(&self) -> Options {
        self.options
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Tokens of every row so far.
    pub fn lengths(&self) -> &[usize] {
        self.caches.lengths()
    }

    /// Bytes of what is kept, by kind: in the host's memory. On a GPU, [`Caches::device_bytes`] come to it.
    pub fn bytes(&self) -> Bytes {
        self.caches.bytes()
    }

    /// The caches, to be looked at.
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Entries that the indexer of each layer has scored since the session began; 0 for a layer without one.
    pub fn scored(&self) -> &[u64] {
        &self.scored
    }

    /// The entries `[1, T, K]` that each layer with an indexer has chosen in the last pass, for each of its `T` tokens: those of
    /// the first row that was given, then those of the next.
    pub fn selections(&self) -> &[Option<Tensor<3, Int>>] {
        &self.selections
    }

    /// A session with the same past. What has been stored so far is shared; each of the two stores what it adds.
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// A session of these rows, in this order, with their past, which is shared; a row may be named more than once, to continue it
    /// in several ways.
    ///
    /// # Errors
    /// When there are no rows, a row does not exist, full caches would not fit the memory, or the session has ended.
    pub fn fork_rows(&self, rows: &[usize]) -> Result<Self, SessionError> {
        self.whole()?;
        let count = self.lengths().len();
        if let Some(&row) = rows.iter().find(|&&row| row >= count) {
            return Err(SessionError::Row { row, rows: count });
        }
        if rows.is_empty() {
            return Err(SessionError::NoRows);
        }
        let (needed, available) = (needed(&self.config, rows.len(), self.options), self.options.memory.bytes()?);
        if needed > u128::from(available) {
            let tokens = self.options.max_tokens;
            return Err(SessionError::Memory { rows: rows.len(), tokens, needed, available });
        }
        let without_windows = rows.iter().map(|&row| self.without_windows[row]).collect();
        Ok(Self { caches: self.caches.rows(rows), without_windows, ..self.clone() })
    }

    /// Gives every row `tokens` further tokens whose vectors are made up of the numbers that `next` gives: for measurements at a
    /// length that no model has read.
    ///
    /// # Errors
    /// When a row would be longer than it may be, or has no windows yet, or the session has ended.
    pub fn make_up(&mut self, tokens: usize, mut next: impl FnMut() -> f32) -> Result<(), SessionError> {
        self.whole()?;
        for row in 0..self.lengths().len() {
            if self.without_windows[row] {
                return Err(SessionError::NoWindows { row });
            }
            self.check_length(row, tokens)?;
        }
        for row in 0..self.lengths().len() {
            self.caches.make_up(row, tokens, &mut next);
        }
        Ok(())
    }

    /// Which model this is; found out once.
    pub(crate) fn identity(&self) -> &Identity {
        self.identity.get_or_init(|| Identity::of(&self.model, &self.config))
    }

    /// Refuses where a pass has failed half-way.
    pub(crate) fn whole(&self) -> Result<(), SessionError> {
        if self.broken { Err(SessionError::Ended) } else { Ok(()) }
    }

    fn check_length(&self, row: usize, more: usize) -> Result<(), SessionError> {
        let (tokens, limit) = (self.lengths()[row].saturating_add(more), self.options.max_tokens);
        if tokens > limit { Err(SessionError::TooLong { row, tokens, limit }) } else { Ok(()) }
    }
}

/// Where the model's weights are.
fn device_of(model: &Model) -> Device {
    model.devices().into_iter().next().expect("a model has weights")
}

/// Bytes that full caches need.
fn needed(config: &ModelConfig, rows: usize, options: Options) -> u128 {
    Caches::bytes_of(config, &[options.max_tokens as u64], options.quantize, true).saturating_mul(rows as u128)
}

/// Whether the model has the layers and as many weights as the configuration says.
fn same_layers(model: &Model, config: &ModelConfig) -> Result<(), SessionError> {
    let modes: Vec<_> = model.layers().iter().map(|block| block.attention().mode()).collect();
    let expected: Vec<_> = config.layers.layers().iter().map(|layer| layer.mode).collect();
    if modes != expected {
        let found = format!("the model has {} layers that are not those of \"{}\"", modes.len(), config.layers);
        return Err(SessionError::Configuration(found));
    }
    let cost = Cost::of(config).map_err(|error| SessionError::Configuration(error.to_string()))?;
    let (found, expected) = (model.num_params() as u128, cost.parameters().total());
    if found < expected {
        return Err(SessionError::Configuration(format!("the model has {found} weights, it describes {expected}")));
    }
    Ok(())
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::DType;
    use csa2_model::attention::Memory;
    use csa2_model::init::initialize;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::FileError;
    use crate::cache::{InStores, Piece};

    /// A pass whose numbers cannot be read gives layers something of the right shape, and ends the session.
    #[test]
    fn a_pass_that_cannot_be_read_ends_the_session() {
        let device = Device::flex();
        let config: ModelConfig = toml::from_str(
            "layers = 'full@2 reuse'\nvocab_size = 11\nd_model = 16\nheads = 2\nhead_dim = 8\nrope_dim = 4\nwindow = 3\ntopk = 2\n\
             index_heads = 2\nindex_dim = 4\nffn = { kind = 'dense', width = 16 }",
        )
        .unwrap();
        let model = Model::new(&config, None, &device).unwrap();
        let model = initialize(model, 0.0, |path| ChaCha8Rng::seed_from_u64(path.len() as u64));
        let mut session = Session::new(&model, &config, 1, Options::new(20)).unwrap();
        session.prefill(&[vec![1, 2, 3]]).unwrap();
        let before = session.scored().to_vec();

        // Numbers in another format are as unreadable as those of a device that is gone.
        let unreadable = |width| Tensor::<3>::ones([1, 3, width], (&device, DType::F64));
        let pieces = [Piece { row: 0, positions: 3..6 }];
        let mut memory = InStores::new(&mut session.caches, &pieces, None);
        memory.enter(0);
        let groups = memory.groups(unreadable(16), 2).unwrap();
        assert_eq!(groups.dims(), [1, 4, 16]);
        memory.window(unreadable(8), Some(3));
        let q = Tensor::<4>::ones([1, 3, 2, 8], &device);
        let topk = Tensor::<3, Int>::full([1, 3, 2], -1, &device);
        let (output, lse) = memory.readout(q, None, Tensor::zeros([2], &device), topk, 1.0);
        assert_eq!((output.dims(), lse.dims()), ([1, 3, 2, 8], [1, 3, 2]));
        let finished = memory.finish();
        assert!(matches!(session.take(finished), Err(SessionError::Unreadable { .. })));

        let ended = |found: Result<(), SessionError>| assert!(matches!(found, Err(SessionError::Ended)), "{found:?}");
        let mut fork = session.fork();
        ended(session.decode(&[1]).map(|_| ()));
        ended(fork.prefill(&[vec![1]]).map(|_| ()));
        ended(session.extend_bounded(&[(0, &[1])], 3).map(|_| ()));
        ended(session.rebuild_windows(&[(0, &[1, 2, 3])]));
        ended(session.make_up(1, || 0.0));
        ended(session.fork_rows(&[0]).map(|_| ()));
        let saved = session.save(&std::env::temp_dir().join("never written"));
        let Err(FileError::Session { source, .. }) = saved else { panic!("{saved:?}") };
        ended(Err(*source));
        assert_eq!(session.scored(), before);
    }
}
