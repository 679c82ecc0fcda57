"""Chess positions: encoding, action ids, attacks, game phase, draws by rule."""
