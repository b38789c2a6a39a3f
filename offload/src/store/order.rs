//! The order in which tensors will be needed: known beforehand, and the same in every step.

/// A cycle of uses and where we are in it. Tensors are numbers.
#[derive(Clone, Debug, Default)]
pub struct Order {
    cycle: Vec<usize>,
    at: usize,
    /// For each tensor its places in the cycle, ascending.
    places: Vec<Vec<usize>>,
}

impl Order {
    /// Tensors 0 to `tensors`, used in this order, over and over.
    pub fn new(cycle: Vec<usize>, tensors: usize) -> Self {
        let mut places = vec![Vec::new(); tensors];
        for (place, tensor) in cycle.iter().enumerate() {
            places[*tensor].push(place);
        }
        Self { cycle, at: 0, places }
    }

    /// Nothing is known of what will be needed.
    pub fn is_empty(&self) -> bool {
        self.cycle.is_empty()
    }

    /// Note that a tensor is used now. False if another one was expected: the order goes on behind
    /// this tensor's next place then.
    pub fn used(&mut self, tensor: usize) -> bool {
        let Some(distance) = self.distance(tensor) else { return self.cycle.is_empty() };
        self.at = (self.at + distance + 1) % self.cycle.len();
        distance == 0
    }

    /// How many other uses come before this tensor's next one. None: it is not in the cycle.
    pub fn distance(&self, tensor: usize) -> Option<usize> {
        let places = self.places.get(tensor)?;
        let next = places.partition_point(|place| *place < self.at);
        match places.get(next) {
            Some(place) => Some(place - self.at),
            None => places.first().map(|place| place + self.cycle.len() - self.at),
        }
    }

    /// What is needed from here on, for one whole cycle.
    pub fn ahead(&self) -> impl Iterator<Item = usize> + '_ {
        let (behind, ahead) = self.cycle.split_at(self.at);
        ahead.iter().chain(behind).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_and_backward() {
        let mut order = Order::new(vec![0, 1, 2, 2, 1, 0], 4);
        assert!(order.used(0) && order.used(1));
        let distances: Vec<_> = (0..4).map(|tensor| order.distance(tensor)).collect();
        assert_eq!(distances, [Some(3), Some(2), Some(0), None]);
        assert_eq!(order.ahead().collect::<Vec<_>>(), [2, 2, 1, 0, 0, 1]);
        assert!(!order.used(1), "2 was expected");
        assert!(order.used(0), "and the order goes on behind 1");
        assert!(!order.used(3), "never expected");
        assert_eq!(order.distance(0), Some(0), "over again");
    }
}
