package tenant

import "context"

type actorKey struct{}

// WithActor puts the authenticated actor into a request's context. Only the edge calls it.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorFrom returns the actor that the edge authenticated; false on public routes.
func ActorFrom(ctx context.Context) (Actor, bool) {
	a, ok := ctx.Value(actorKey{}).(Actor)
	return a, ok
}
