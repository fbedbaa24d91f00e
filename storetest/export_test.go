package storetest

import "time"

// SetLimits sets how long a rule may take, and the store to notice. It answers
// what puts them back.
func SetLimits(limit, grace time.Duration) (restore func()) {
	wasLimit, wasGrace := ruleLimit, ruleGrace
	ruleLimit, ruleGrace = limit, grace
	return func() { ruleLimit, ruleGrace = wasLimit, wasGrace }
}

// SetRaceRounds sets how often a race is run. It answers what puts it back.
func SetRaceRounds(rounds int) (restore func()) {
	was := raceRounds
	raceRounds = rounds
	return func() { raceRounds = was }
}

// RuleNames answers the names of all rules.
func RuleNames() []string {
	var names []string
	for _, r := range rules() {
		names = append(names, r.name)
	}
	return names
}
