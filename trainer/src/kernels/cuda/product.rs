//! What a product of matrices on a device is: three views, their shapes, and checks.

use super::View;

/// A matrix in a view, or as many as a product has, `stride` numbers apart.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub(super) view: View,
    /// Numbers from one row to the next.
    pub(super) apart: usize,
    /// Whether it is the transpose that lies there.
    pub(super) is_turned: bool,
    /// Numbers from one matrix to the next.
    pub(super) stride: usize,
}

impl Matrix {
    /// Rows that begin this many numbers apart.
    pub fn rows(view: View, apart: usize) -> Matrix {
        Matrix { view, apart, is_turned: false, stride: 0 }
    }

    /// Matrices so far apart.
    pub fn each(self, stride: usize) -> Matrix {
        Matrix { stride, ..self }
    }

    /// The transpose.
    pub fn t(self) -> Matrix {
        Matrix { is_turned: !self.is_turned, ..self }
    }

    /// Whether `count` matrices of this shape lie within the view.
    fn holds(&self, [rows, columns]: [usize; 2], count: usize) -> bool {
        let [rows, columns] = if self.is_turned { [columns, rows] } else { [rows, columns] };
        let end = (count - 1) * self.stride + (rows - 1) * self.apart + columns;
        columns <= self.apart && end <= self.view.len()
    }
}

/// out = scale · a · b, or out += that; with [m, n, k] as `shape`, out: [m × n], a: [m × k],
/// b: [k × n].
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub(super) out: Matrix,
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) shape: [usize; 3],
    pub(super) scale: f32,
    pub(super) is_added: bool,
    pub(super) count: usize,
}

impl Product {
    /// One product that replaces what was there.
    pub fn new(out: Matrix, a: Matrix, b: Matrix, shape: [usize; 3]) -> Product {
        let product = Product { out, a, b, shape, scale: 1.0, is_added: false, count: 1 };
        product.check();
        product
    }

    /// So many of them, by the strides of the matrices.
    pub fn times(self, count: usize) -> Product {
        let product = Product { count, ..self };
        product.check();
        product
    }

    /// Times this number.
    pub fn scaled(self, scale: f32) -> Product {
        Product { scale, ..self }
    }

    /// Added to what is there.
    pub fn added(self) -> Product {
        Product { is_added: true, ..self }
    }

    fn check(&self) {
        let [m, n, k] = self.shape;
        assert!(m > 0 && n > 0 && k > 0 && self.count > 0, "an empty product: {self:?}");
        assert!(!self.out.is_turned, "the product itself is not turned");
        assert_eq!(self.a.view.size(), self.b.view.size(), "factors of one type");
        let fits = self.out.holds([m, n], self.count)
            && self.a.holds([m, k], self.count)
            && self.b.holds([k, n], self.count);
        assert!(fits, "a matrix leaves its view: {self:?}");
    }
}
