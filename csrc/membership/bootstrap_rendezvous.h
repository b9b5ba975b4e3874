// How ranks find each other without MPI: at a small store under an address that all were told.
// `rueda run` serves it, on several hosts where rank 0 is; elsewhere rank 0 does.
//
// The launcher gives each rank RUEDA_RANK, RUEDA_SIZE and RUEDA_RENDEZVOUS, which is unix:@name (in
// the abstract namespace of one host) or tcp:host:port, where host is rank 0's; RUEDA_SECRET, a
// random text that both sides prove to know; and RUEDA_RENDEZVOUS_STORE, the same address, where it
// is served already. Rank 0 may have a descriptor that listens there: RUEDA_RENDEZVOUS_LISTENER. On
// a Unix socket both sides must also run under the same user. What is said over TCP is neither
// encrypted nor protected against changes: docs/security.md.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "transport/bootstrap.h"

namespace rueda {

// As a secret may be short where it is random.
inline constexpr std::size_t min_secret_length = 16;

// Tries until `deadline`; then ErrorCode::initialization. At once where the other side has another
// secret. `secret` may be empty on a Unix socket; over TCP it has at least min_secret_length
// characters. On rank 0 it also starts the store, whose
// thread lives as long as the returned object; the object's destructor waits a few seconds for
// ranks that are still asking. An address may be used again once the bootstraps that used it are
// destroyed: a rank that is early waits for the others to have left the old store. Where `listener`
// is a descriptor that listens at `address`, rank 0 serves there (inherited_listener.h); else it
// binds the address itself.
[[nodiscard]] Expected<std::unique_ptr<Bootstrap>> connect_rendezvous(
    const std::string& address, int rank, int size, Time deadline, const std::string& secret = {},
    int listener = -1);

// The same where the launcher serves the store (launcher/store/), before any rank is started and
// for one world after the other. Who waits for a rank that has ended gets an error that names it.
[[nodiscard]] Expected<std::unique_ptr<Bootstrap>> enter_rendezvous(const std::string& address,
                                                                    int rank, int size,
                                                                    Time deadline,
                                                                    const std::string& secret);

// As connect_rendezvous() where rank 0 serves at the first of several TCP addresses that is free,
// and the others try them in turn until they find it: what answers elsewhere and does not know the
// secret is passed by. At once an error on rank 0 where one of them is served by another process
// that knows the secret. `ends_with_agent`: and where has_lost_agent() is true, before or
// meanwhile.
[[nodiscard]] Expected<std::unique_ptr<Bootstrap>> connect_at_first_free(
    const std::vector<std::string>& addresses, int rank, int size, Time deadline,
    const std::string& secret, bool ends_with_agent);

}  // namespace rueda
