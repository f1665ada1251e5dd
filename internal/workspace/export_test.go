package workspace

import (
	"github.com/google/uuid"

	"managoat/internal/environment"
	"managoat/queries"
)

// PIPScript is what the packages step runs for pip.
const PIPScript = pipScript

// Old says an age for people.
var Old = old

// LayerName names the layer of an environment's packages.
func LayerName(account uuid.UUID, env environment.Environment, o Options) string {
	return (&setup{s: &Service{o: o}, w: queries.Workspace{TenantID: account}, env: env}).layer()
}
