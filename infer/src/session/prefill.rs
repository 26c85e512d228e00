//! Reading prompts: in passes of a bounded number of tokens, over one row after the other.

use burn::tensor::{DType, Int, Tensor, TensorData, TensorReadError};
use csa2_model::attention::Context;
use csa2_model::block::Stream;

use super::Session;
use crate::SessionError;
use crate::cache::{Finished, InStores, Piece, Replay, Selections};

impl Session {
    /// Reads a list of tokens for every row, behind what the row has: prompts, or further parts of them. Gives the logits
    /// `[rows, vocabulary]` behind the last token of every row.
    ///
    /// # Errors
    /// When there is not one list for each row, a list is empty or a row becomes too long, or a token does not exist; or when the device
    /// cannot be read, which ends the session.
    pub fn prefill(&mut self, prompts: &[Vec<i32>]) -> Result<Tensor<2>, SessionError> {
        let rows = self.lengths().len();
        if prompts.len() != rows {
            return Err(SessionError::Rows { given: prompts.len(), rows });
        }
        let given: Vec<(usize, &[i32])> = prompts.iter().map(Vec::as_slice).enumerate().collect();
        self.extend(&given)
    }

    /// As [`prefill`](Self::prefill), for some of the rows, in any order: logits `[given rows, vocabulary]`.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill), or when a row does not exist or is given twice.
    pub fn extend(&mut self, given: &[(usize, &[i32])]) -> Result<Tensor<2>, SessionError> {
        self.check(given)?;
        let mut last = Vec::new();
        self.read(given, |read, x| {
            let mut at = 0;
            for &(_, count, whole) in read {
                at += count;
                if whole {
                    last.push(x.clone().narrow(1, at - 1, 1));
                }
            }
        })?;
        Ok(self.model.read(Tensor::cat(last, 1)).squeeze_dim(0))
    }

    /// As [`extend`](Self::extend), but gives the logits behind every token: for each given row `[its tokens, vocabulary]`.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    pub fn score(&mut self, given: &[(usize, &[i32])]) -> Result<Vec<Tensor<2>>, SessionError> {
        self.check(given)?;
        let model = self.model.clone();
        let mut logits: Vec<Vec<Tensor<3>>> = vec![Vec::new(); given.len()];
        self.read(given, |read, x| {
            let all = model.read(x);
            let mut at = 0;
            for &(number, count, _) in read {
                logits[number].push(all.clone().narrow(1, at, count));
                at += count;
            }
        })?;
        Ok(logits.into_iter().map(|parts| Tensor::cat(parts, 1).squeeze_dim(0)).collect())
    }

    /// Everything that can be wrong with a request.
    pub(super) fn check(&self, given: &[(usize, &[i32])]) -> Result<(), SessionError> {
        self.check_tokens(given)?;
        for &(row, tokens) in given {
            if self.without_windows[row] {
                return Err(SessionError::NoWindows { row });
            }
            self.check_length(row, tokens.len())?;
        }
        Ok(())
    }

    /// Everything that can be wrong with rows and tokens, whatever is done with them.
    pub(super) fn check_tokens(&self, given: &[(usize, &[i32])]) -> Result<(), SessionError> {
        self.whole()?;
        let rows = self.lengths().len();
        if given.is_empty() {
            return Err(SessionError::Rows { given: 0, rows });
        }
        let mut seen = vec![false; rows];
        for &(row, tokens) in given {
            if row >= rows || std::mem::replace(&mut seen[row], true) {
                return Err(SessionError::Row { row, rows });
            }
            if tokens.is_empty() {
                return Err(SessionError::Empty { row });
            }
            let vocabulary = self.vocabulary;
            let known = |token: i32| usize::try_from(token).is_ok_and(|token| token < vocabulary);
            if let Some(at) = tokens.iter().position(|&token| !known(token)) {
                return Err(SessionError::Token { row, at, token: tokens[at], vocabulary });
            }
        }
        Ok(())
    }

    /// Reads checked tokens in passes. After each, `take` gets which parts it was made of (number of the given row, tokens, whether
    /// these were its last) and what the network's head would read of them `[1, T, d_model]`.
    fn read(
        &mut self,
        given: &[(usize, &[i32])],
        mut take: impl FnMut(&[(usize, usize, bool)], Tensor<3>),
    ) -> Result<(), SessionError> {
        let (mut number, mut done) = (0, 0);
        while number < given.len() {
            let (mut pieces, mut parts, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
            while number < given.len() && tokens.len() < self.options.pass.max(1) {
                let (row, list) = given[number];
                let count = (self.options.pass.max(1) - tokens.len()).min(list.len() - done);
                let start = self.lengths()[row];
                pieces.push(Piece { row, positions: start..start + count });
                tokens.extend_from_slice(&list[done..done + count]);
                done += count;
                parts.push((number, count, done == list.len()));
                if done == list.len() {
                    (number, done) = (number + 1, 0);
                }
            }
            take(&parts, self.pass(&pieces, tokens, |_, _| {})?);
        }
        Ok(())
    }

    /// One pass through the network: what its head would read `[1, T, d_model]`. `watch` is shown the stream after every layer.
    ///
    /// # Errors
    /// When the device cannot be read.
    pub(super) fn pass(
        &mut self,
        pieces: &[Piece],
        tokens: Vec<i32>,
        watch: impl FnMut(usize, &Stream),
    ) -> Result<Tensor<3>, SessionError> {
        self.pass_replayed(pieces, tokens, None, watch)
    }

    /// As [`pass`](Self::pass), some windows beginning where a replay does.
    pub(super) fn pass_replayed(
        &mut self,
        pieces: &[Piece],
        tokens: Vec<i32>,
        replay: Option<&Replay>,
        watch: impl FnMut(usize, &Stream),
    ) -> Result<Tensor<3>, SessionError> {
        let (tokens, cx) = self.inputs(pieces, tokens);
        let mut memory = InStores::new(&mut self.caches, pieces, replay);
        let x = self.model.forward_in(tokens, &cx, &mut memory, watch).read();
        let finished = memory.finish();
        self.selections = self.take(finished)?;
        Ok(x)
    }

    /// One pass through the layers below `end`, which itself stores its entries alone.
    ///
    /// # Errors
    /// When the device cannot be read.
    pub(super) fn encode(&mut self, end: usize, piece: &Piece, tokens: Vec<i32>) -> Result<(), SessionError> {
        let pieces = std::slice::from_ref(piece);
        let (tokens, cx) = self.inputs(pieces, tokens);
        let mut memory = InStores::new(&mut self.caches, pieces, None);
        self.model.encode_in(end, tokens, &cx, &mut memory);
        let finished = memory.finish();
        self.take(finished).map(|_| ())
    }

    /// The tokens `[1, T]`, and the context of their pieces.
    fn inputs(&self, pieces: &[Piece], tokens: Vec<i32>) -> (Tensor<2, Int>, Context) {
        let positions: Vec<_> = pieces.iter().map(|piece| piece.positions.clone()).collect();
        // Vectors are rounded where they are stored.
        let cx = Context::scattered(&self.config, &positions, DType::F32, &self.device).with_quantization(false);
        let count = tokens.len();
        (Tensor::from_data(TensorData::new(tokens, [1, count]), &self.device), cx)
    }

    /// What a pass has selected; counts what it has scored. One that failed half-way ends the session.
    pub(super) fn take(&mut self, finished: Result<Finished, TensorReadError>) -> Result<Selections, SessionError> {
        let (selections, scored) = finished.map_err(|source| {
            self.broken = true;
            SessionError::Unreadable { source }
        })?;
        for (total, new) in self.scored.iter_mut().zip(scored) {
            *total += new;
        }
        Ok(selections)
    }
}
