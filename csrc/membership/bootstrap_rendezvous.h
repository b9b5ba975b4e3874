// Bootstrap without MPI, through a small store at an address that all ranks were given. `rueda run`
// serves the store, on several hosts where rank 0 is; otherwise rank 0 does.
//
// The launcher gives each rank RUEDA_RANK, RUEDA_SIZE and RUEDA_RENDEZVOUS: unix:@name (in the
// abstract namespace of one host) or tcp:host:port, where host is rank 0's. RUEDA_SECRET is a
// random text that both sides prove to know. RUEDA_RENDEZVOUS_STORE is the same address, if it is
// being served already. Rank 0 may get a descriptor that listens there: RUEDA_RENDEZVOUS_LISTENER.
// On a Unix socket both sides must also run as the same user. TCP traffic is neither encrypted nor
// protected against tampering: docs/security.md.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "transport/bootstrap.h"

namespace rueda {

// Minimum length of a random secret.
inline constexpr std::size_t min_secret_length = 16;

// Tries until `deadline`, then fails with ErrorCode::initialization; fails immediately if the other
// side has another secret. `secret` may be empty on a Unix socket; over TCP it must have at least
// min_secret_length characters. Rank 0 also starts the store. The store's thread lives as long as
// the returned object, whose destructor waits a few seconds for ranks that are still asking. An
// address can be reused once the bootstraps that used it are destroyed: a rank that is early waits
// until the others have left the old store. If `listener` is a descriptor listening at `address`,
// rank 0 serves there (inherited_listener.h); otherwise it binds the address itself.
[[nodiscard]] Expected<std::unique_ptr<Bootstrap>> connect_rendezvous(
    const std::string& address, int rank, int size, Time deadline, const std::string& secret = {},
    int listener = -1);

// The same if the launcher serves the store (launcher/store/), which it does before any rank starts
// and for successive worlds. A rank that waits for one that has ended gets an error naming it.
[[nodiscard]] Expected<std::unique_ptr<Bootstrap>> enter_rendezvous(const std::string& address,
                                                                    int rank, int size,
                                                                    Time deadline,
                                                                    const std::string& secret);

// Like connect_rendezvous(), but rank 0 serves at the first free one of several TCP addresses, and
// the others try them in turn; whatever answers without knowing the secret is skipped. On rank 0,
// fails immediately if another process that knows the secret serves one of them. `ends_with_agent`:
// also fails if has_lost_agent() is true, before or meanwhile.
[[nodiscard]] Expected<std::unique_ptr<Bootstrap>> connect_at_first_free(
    const std::vector<std::string>& addresses, int rank, int size, Time deadline,
    const std::string& secret, bool ends_with_agent);

}  // namespace rueda
