// All of it in one go: torch's headers take longer to compile than everything here.
#include "collectives.cpp"
#include "ends.cpp"
#include "group.cpp"
#include "module.cpp"
#include "scatters.cpp"
#include "sparse.cpp"
