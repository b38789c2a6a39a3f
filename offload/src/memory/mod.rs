//! One arena for each process: huge pages where there are any, exact sizes, a hard budget.
