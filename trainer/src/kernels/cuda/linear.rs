//! Linear layers, whole ones and some of their outputs at a time. Shapes are those of
//! `kernels::Kernels`.

use super::launch::{launch, narrow};
use super::operations::SLICES;
use super::{Device, Matrix, Product, View};
use crate::error::Error;
use brigade_cuda::Arg;
use std::ops::Range;

/// Some columns of rows: outputs of a linear layer, all of them or a tile's.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// From the first of them on.
    view: View,
    count: usize,
    /// Numbers from one row to the next.
    apart: usize,
}

impl Columns {
    /// All, of rows of so many numbers.
    pub fn all(rows: View, width: usize) -> Columns {
        assert!(rows.len().is_multiple_of(width), "rows of {width} in {rows:?}");
        Columns { view: rows, count: width, apart: width }
    }

    /// Those of a range.
    ///
    /// Panics: when it is not within.
    pub fn part(self, range: Range<usize>) -> Columns {
        let Columns { view, count, apart } = self;
        assert!(range.start < range.end && range.end <= count, "{range:?} of {count} columns");
        let (view, count) = (view.part(range.start..view.len()), range.len());
        Columns { view, count, apart }
    }

    fn rows(self) -> usize {
        self.view.len().div_ceil(self.apart)
    }

    fn matrix(self) -> Matrix {
        Matrix::rows(self.view, self.apart)
    }
}

impl Device {
    /// y = x · weightᵀ + bias, all inside of a block.
    pub fn enter(&self, y: View, x: View, weight: View, bias: View) -> Result<(), Error> {
        self.enter_columns(Columns::all(y, bias.len()), x, [weight, bias])
    }

    /// The same of some outputs, with their rows of the weight.
    pub fn enter_columns(
        &self,
        y: Columns,
        x: View,
        [weight, bias]: [View; 2],
    ) -> Result<(), Error> {
        let Columns { view, count, apart } = y;
        assert_eq!(bias.len(), count, "a bias for each output");
        let len = y.rows() * count;
        let (all, width, apart) = (len as u64, narrow(count), narrow(apart));
        launch!(self.start_inside(view.address(), bias.address(), all, width, apart)
            as self.elements(len))?;
        self.product(&forward(y, x, weight).added())
    }

    /// y = onto, if there is something, + bias: of the stream, or of whatever else is in f32.
    pub fn start(&self, y: View, onto: Option<View>, bias: View) -> Result<(), Error> {
        let all = |view| Columns::all(view, bias.len());
        self.start_columns(all(y), onto.map(all), bias)
    }

    fn start_columns(&self, y: Columns, onto: Option<Columns>, bias: View) -> Result<(), Error> {
        let Columns { view, count, apart } = y;
        assert!(onto.is_none_or(|onto| {
            let (y, onto_view) = (view, onto.view);
            (y.len(), y.size(), apart) == (onto_view.len(), onto_view.size(), onto.apart)
        }));
        assert_eq!((view.size(), bias.len()), (4, count), "sums are in f32");
        let len = y.rows() * count;
        let (all, width, apart) = (len as u64, narrow(count), narrow(apart));
        let onto = onto.map_or(0, |onto| onto.view.address());
        launch!(self.start_stream(view.address(), onto, bias.address(), all, width, apart)
            as self.elements(len))
    }

    /// y = x · weightᵀ + bias + onto, if there is something, from the inside to the stream.
    pub fn leave(
        &self,
        y: View,
        x: View,
        layer: [View; 2],
        onto: Option<View>,
    ) -> Result<(), Error> {
        let all = |view| Columns::all(view, layer[1].len());
        self.leave_columns(all(y), x, layer, onto.map(all))
    }

    /// The same of some outputs, with their rows of the weight.
    pub fn leave_columns(
        &self,
        y: Columns,
        x: View,
        [weight, bias]: [View; 2],
        onto: Option<Columns>,
    ) -> Result<(), Error> {
        self.start_columns(y, onto, bias)?;
        self.product(&forward(y, x, weight).added())
    }

    /// y = x · weightᵀ, with so many outputs.
    pub fn project(&self, y: View, x: View, weight: View, outputs: usize) -> Result<(), Error> {
        self.product(&forward(Columns::all(y, outputs), x, weight))
    }

    /// y += x · weightᵀ, with so many outputs.
    pub fn project_onto(
        &self,
        y: View,
        x: View,
        weight: View,
        outputs: usize,
    ) -> Result<(), Error> {
        self.product(&forward(Columns::all(y, outputs), x, weight).added())
    }

    /// dx = dy · weight, and the weight's gradient dyᵀ · x.
    pub fn linear_backward(
        &self,
        dx: View,
        dweight: View,
        dy: View,
        x: View,
        weight: View,
        outputs: usize,
    ) -> Result<(), Error> {
        self.linear_input(dx, dy, weight, outputs)?;
        self.linear_weight(dweight, dy, x, outputs)
    }

    /// dx = dy · weight.
    pub fn linear_input(
        &self,
        dx: View,
        dy: View,
        weight: View,
        outputs: usize,
    ) -> Result<(), Error> {
        self.product(&input(dx, Columns::all(dy, outputs), weight))
    }

    /// dx += dy · weight of some outputs, or dx = that where they are the first.
    pub fn columns_input(
        &self,
        dx: View,
        dy: Columns,
        weight: View,
        is_first: bool,
    ) -> Result<(), Error> {
        let product = input(dx, dy, weight);
        self.product(&if is_first { product } else { product.added() })
    }

    /// The weight's gradient, dyᵀ · x.
    pub fn linear_weight(
        &self,
        dweight: View,
        dy: View,
        x: View,
        outputs: usize,
    ) -> Result<(), Error> {
        self.columns_weight(dweight, Columns::all(dy, outputs), x)
    }

    /// The same of some outputs.
    pub fn columns_weight(&self, dweight: View, dy: Columns, x: View) -> Result<(), Error> {
        let (rows, inputs) = (dy.rows(), dweight.len() / dy.count);
        let (dweight, x) = (Matrix::rows(dweight, inputs), Matrix::rows(x, inputs));
        self.product(&Product::new(dweight, dy.matrix().t(), x, [dy.count, inputs, rows]))
    }

    /// A bias's gradient: the sum of the rows of dy, which is inside.
    pub fn bias_backward(&self, dbias: View, dy: View, partials: View) -> Result<(), Error> {
        self.columns_bias(dbias, Columns::all(dy, dbias.len()), partials)
    }

    /// The same of some outputs.
    pub fn columns_bias(&self, dbias: View, dy: Columns, partials: View) -> Result<(), Error> {
        assert_eq!(dbias.len(), dy.count, "a bias for each output");
        let partials = partials.first(SLICES * dy.count);
        let [rows, width, apart, slices] = [dy.rows(), dy.count, dy.apart, SLICES].map(narrow);
        launch!(self.column_slices(
            partials.address(), dy.view.address(), rows, width, apart, slices,
        ) as self.elements(partials.len()))?;
        self.fold(dbias, partials, SLICES)
    }
}

fn forward(y: Columns, x: View, weight: View) -> Product {
    let inputs = weight.len() / y.count;
    let rows = x.len() / inputs;
    assert_eq!(y.rows(), rows, "the output of a linear layer");
    let weight = Matrix::rows(weight, inputs).t();
    Product::new(y.matrix(), Matrix::rows(x, inputs), weight, [rows, y.count, inputs])
}

fn input(dx: View, dy: Columns, weight: View) -> Product {
    let inputs = weight.len() / dy.count;
    let (dx, weight) = (Matrix::rows(dx, inputs), Matrix::rows(weight, inputs));
    Product::new(dx, dy.matrix(), weight, [dy.rows(), inputs, dy.count])
}
